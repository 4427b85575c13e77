"""Commands of the area: build."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import output
from gpuenv.commands import command
from gpuenv.commands.image import (
    BuildFlags,
    ContentFlags,
    NameOption,
    SourceFlags,
    WithOption,
    features_of,
)
from gpuenv.commands.options import MatrixOption, RequestFlags
from gpuenv.commands.wiring import fill_order, take_order, try_site
from gpuenv.errors import UsageError

if TYPE_CHECKING:
    from gpuenv.build import BuildPlan, BuiltImage


def register(app: typer.Typer) -> None:
    """Add the area's commands to ``app``."""

    @command(app, "build")
    def build(
        request: RequestFlags,
        content: ContentFlags,
        sources: SourceFlags,
        how: BuildFlags,
        name: NameOption = None,
        tag: Annotated[
            list[str] | None,
            typer.Option(
                "--tag",
                "-t",
                metavar="REF",
                help="A further name for the image; may be given several times.",
                rich_help_panel="Image",
            ),
        ] = None,
        with_feature: WithOption = None,
        push: Annotated[
            bool, typer.Option("--push", help="Push every name to its registry afterwards.")
        ] = False,
        dry_run: Annotated[
            bool,
            typer.Option(
                "--dry-run", help="Print the plan (-v: and the Dockerfile), build nothing."
            ),
        ] = False,
        matrix_file: MatrixOption = None,
    ) -> None:
        """Build an image that fits, and prove what is in it.

        Resolves the request, asks the package sources whether they have the wheel, renders, builds,
        and then asks the image itself: any difference from the row of the matrix fails the build.

        Example: gpuenv build --torch 2.9 --cuda 12.8 --pip einops --dry-run
        """
        tags = tuple(dict.fromkeys(tag or ()))
        if push and not tags:
            raise UsageError(
                "--push needs a --tag",
                why="the default name begins with localhost/, which is on no registry",
                fix="--tag registry.example.org/team/torch --push",
            )
        if dry_run:
            from gpuenv.provision import plan_order

            with try_site(how.engine) as site:
                order, shop = take_order(
                    request, content, sources, how,
                    matrix_file=matrix_file, name=name, tags=tags, site=site,
                    features=features_of(with_feature),
                )  # fmt: skip
                plan = plan_order(order, shop)
            output.current().answer(plan.as_dict(), human=lambda: _print_plan(plan))
            return
        from gpuenv.commands.site import open_site

        with open_site(how.engine) as site:
            order, shop = take_order(
                request, content, sources, how,
                matrix_file=matrix_file, name=name, tags=tags, site=site,
                    features=features_of(with_feature),
            )  # fmt: skip
            image = fill_order(order, shop, progress=how.progress)
            pushed: dict[str, str] = {}
            if push:
                from gpuenv.build import push_image

                pushed = push_image(
                    site.engine, tags, lambda event: output.current().detail(str(event))
                )
        output.current().answer(
            image.as_dict() | ({"pushed": pushed} if push else {}),
            human=lambda: _print_image(image, pushed),
        )


def _print_plan(plan: BuildPlan) -> None:
    out = output.current()
    row = plan.spec.environment
    out.text(f"image     {plan.ref}")
    out.text(f"torch     {row.torch}+{row.torch_variant} from {row.source}")
    out.text(f"python    {row.python} on {row.base_image}")
    out.text(f"needs     {plan.needed_bytes / 1e9:.0f} GB at the peak")
    if out.verbosity > 0:
        out.text("")
        out.text(plan.context.dockerfile)


def _print_image(image: BuiltImage, pushed: dict[str, str]) -> None:
    out = output.current()
    how = "already built" if image.found else "built and proven"
    out.note(f"{how}: {image.size_bytes / 1e9:.2f} GB, {image.image_id[7:19]}")
    out.text(image.image_ref)
    for ref, digest in pushed.items():
        out.note(f"pushed {ref} {digest}")
