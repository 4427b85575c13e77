"""Whether training computes the right thing: exact gradients first, tolerances where they must be.

Data are whole numbers wherever an exact answer exists, so that a difference is a fault of the
hardware or the software and never rounding.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from gpuenv.checks.devices import each_device, failed, skipped
from gpuenv.checks.model import Check, Level
from gpuenv.checks.say import Say, group, in_mib, integer, number, probe, rows, seen, text, words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuenv.checks.model import Facts
    from gpuenv.checks.say import Results

HARDWARE = ("hw.ecc", "hw.remap", "hw.xid")
STEP_TOLERANCE = 1e-4
TF32_RESIDUE = 2.0**-12
# fused float32 kernels may multiply in TF32
SDPA_TOLERANCE = {"float32": 3e-3, "float16": 4e-3, "bfloat16": 3e-2}
PEAK_SLACK_BYTES = 4 << 20

_DAMAGE = (
    "the same whole numbers have one right answer in every type; a different one comes from "
    "damaged hardware or a broken library"
)


def _wrong(say: Say, what: str, name: str, values: object) -> Results:
    return say.fail(
        what,
        why=_DAMAGE,
        evidence=[seen(name, values)],
        suspects=HARDWARE,
        alternatives=("a library of another version in front of the wheel's own (torch.libs)",),
    )


def check_matmul(facts: Facts) -> Results:
    """Compare products of integer matrices with the exact ones."""

    def judge(say: Say, entry: Mapping[str, Any]) -> Results | None:
        wrong = group(entry, "wrong")
        bad = {dtype: count for dtype, count in wrong.items() if count}
        if entry.get("reference_wrong"):
            return _wrong(say, "the CPU's own reference is wrong", "torch.matmul", dict(entry))
        if bad:
            counts = ", ".join(f"{count} in {dtype}" for dtype, count in bad.items())
            return _wrong(say, f"wrong products of whole numbers: {counts}", "torch.matmul", bad)
        return None if wrong.get("float32") == 0 else say.error("no product was computed")

    return each_device(
        facts,
        "torch.matmul",
        Say("num.matmul"),
        judge=judge,
        what="a matrix product",
        fine=lambda where: f"integer matrices multiply exactly {where}",
    )


GRADIENTS = {
    "loss": 49.0,
    "dx": 42.0,
    "dw": 28.0,
    "db": 14.0,
    "cube": [3.0, 12.0, 27.0],
    # 1 is doubled 7 times to 128; 1.5 to 192, whose square has the derivative 2 * 192 * 128
    "control_flow": [128.0, 49152.0],
    "zero_grad": [24.0, 48.0, None, 24.0, 0.0],
    "no_grad_tracks": False,
}
"""What ``torch.autograd`` must tell, first of y = wx + b, loss = y squared at x=2, w=3, b=1."""


def check_autograd(facts: Facts) -> Results:
    """Compare first derivatives with their exact values."""

    def judge(say: Say, entry: Mapping[str, Any]) -> Results | None:
        for key, right in GRADIENTS.items():
            got = entry.get(key)
            if got != right:
                return _wrong(say, f"{key} is {got}, not {right}", "torch.autograd", got)
        return None

    return each_device(
        facts,
        "torch.autograd",
        Say("num.autograd"),
        judge=judge,
        what="the backward pass",
        fine=lambda where: f"first derivatives exact (dx 42, dw 28, db 14) {where}",
    )


def check_accumulation(facts: Facts) -> Results:
    """Compare accumulated gradients with the whole batch's, bit for bit."""

    def judge(say: Say, entry: Mapping[str, Any]) -> Results | None:
        for dtype, counts in group(entry, "wrong").items():
            bad = {n: c for n, c in counts.items() if c} if counts else {}
            if bad:
                return _wrong(
                    say,
                    f"accumulated gradients differ from the whole batch's in {dtype}",
                    "torch.accumulation",
                    f"{dtype}: wrong elements by number of chunks {bad}",
                )
        return None if group(entry, "wrong").get("float32") else say.error("nothing accumulated")

    return each_device(
        facts,
        "torch.accumulation",
        Say("num.accum"),
        judge=judge,
        what="gradient accumulation",
        fine=lambda where: f"accumulated gradients equal the whole batch bit for bit {where}",
    )


def _finite(values: object) -> bool:
    """Say whether every value is a number; probes write infinities and NaN as text."""
    if not isinstance(values, (list, tuple)) or not values:
        return False
    return all(isinstance(v, (int, float)) for v in values)


def _falls(losses: object) -> bool:
    """Say whether losses are numbers and the last is below the first."""
    return isinstance(losses, (list, tuple)) and _finite(losses) and losses[-1] < losses[0]


def check_step(facts: Facts) -> Results:
    """Ask whether a real training step falls, stays finite, and agrees with float64."""

    def judge(say: Say, entry: Mapping[str, Any]) -> Results | None:
        losses = entry.get("losses")
        if not _finite(losses):
            return _wrong(say, "the loss is not a number", "torch.step", losses)
        if not _falls(losses):
            return _wrong(say, "the loss does not fall", "torch.step", losses)
        for key, what in (("gradient_error", "gradients"), ("loss_error", "losses")):
            error = number(entry, key)
            if error is None or error > STEP_TOLERANCE:
                return _wrong(
                    say,
                    f"{what} differ from float64 by {error}, more than {STEP_TOLERANCE:g}",
                    "torch.step",
                    f"{key} {error}",
                )
        return None

    peaks = [integer(entry, "peak_bytes") for entry in rows(probe(facts, "torch.step"), "results")]
    peak = max((p for p in peaks if p is not None), default=None)
    used = "" if peak is None else f", peak {in_mib(peak)}"
    return each_device(
        facts,
        "torch.step",
        Say("num.step"),
        judge=judge,
        what="the training step",
        fine=lambda where: f"AdamW steps agree with float64 and the loss falls {where}{used}",
    )


def check_tf32(facts: Facts) -> Results:
    """Tell which precision a float32 product really has; both are legitimate."""
    say = Say("num.tf32")
    found = probe(facts, "torch.tf32")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    told: list[str] = []
    entries = rows(found, "results")
    for entry in entries:
        if text(entry, "error"):
            return failed(
                say, "a float32 product failed", text(entry, "error"), source="torch.tf32"
            )
        kinds = []
        for key, what in (("matmul_residue", "matmul"), ("conv_residue", "convolution")):
            residue = number(entry, key)
            kinds.append(f"{what} {'float32' if residue == TF32_RESIDUE else 'TF32'}")
        told.append(", ".join(kinds))
    common = Counter(told).most_common(1)
    if not common:
        return say.error("torch.tf32 told of no device")
    asked = text(entries[0], "matmul_precision")
    return say.info(
        f"measured: {common[0][0]}" + ("" if len(set(told)) == 1 else " (not on every GPU alike)"),
        seen("torch.get_float32_matmul_precision", asked),
        why="TF32 keeps 10 bits of the mantissa: faster, and 1 + 2^-12 becomes 1",
    )


def check_second_order(facts: Facts) -> Results:
    """Compare a Hessian with the exact one and ask for gradgradcheck's verdict."""
    right = [[6.0, 0.0, 0.0], [0.0, 12.0, 0.0], [0.0, 0.0, 18.0]]

    def judge(say: Say, entry: Mapping[str, Any]) -> Results | None:
        if entry.get("hessian") != right:
            return _wrong(say, "the Hessian is wrong", "torch.second-order", entry.get("hessian"))
        if entry.get("gradgradcheck") is not True:
            return _wrong(say, "gradgradcheck does not pass", "torch.second-order", "failed")
        return None

    return each_device(
        facts,
        "torch.second-order",
        Say("num.second"),
        judge=judge,
        what="the second derivative",
        fine=lambda where: f"second derivatives exact, gradgradcheck passes {where}",
    )


def _judge_fp16(say: Say, fp16: Mapping[str, Any]) -> Results | None:
    initial = number(fp16, "initial_scale") or 0.0
    if fp16.get("moved") != [True, False, True]:
        return _wrong(
            say,
            "an infinite gradient did not make the scaler skip the step",
            "torch.amp",
            f"weights moved: {fp16.get('moved')}",
        )
    if fp16.get("scales") != [initial, initial / 2, initial / 2]:
        return _wrong(say, "the scale was not halved", "torch.amp", fp16.get("scales"))
    if fp16.get("output_dtype") != "float16" or fp16.get("finite") is not True:
        return _wrong(say, "autocast did not compute in float16", "torch.amp", dict(fp16))
    return None


def _judge_bf16(say: Say, bf16: Mapping[str, Any]) -> Results | None:
    if not _falls(bf16.get("losses")):
        return _wrong(say, "the bfloat16 loss does not fall", "torch.amp", bf16.get("losses"))
    types = (bf16.get("output_dtype"), bf16.get("weight_dtype"))
    if types != ("bfloat16", "float32"):
        return _wrong(say, "autocast did not compute in bfloat16", "torch.amp", types)
    return None


def check_amp(facts: Facts) -> Results:
    """Ask whether mixed precision scales, skips and stays finite as documented."""

    def judge(say: Say, entry: Mapping[str, Any]) -> Results | None:
        fp16, bf16 = group(entry, "fp16"), group(entry, "bf16")
        if not fp16 and not bf16:
            return say.skip("not-applicable", "this torch offers no mixed precision here")
        verdict = _judge_fp16(say, fp16) if fp16 else None
        return verdict or (_judge_bf16(say, bf16) if bf16 else None)

    entries = rows(probe(facts, "torch.amp"), "results")
    notes = ""
    if any(entry.get("bf16_native") is False for entry in entries):
        notes = "; bfloat16 is emulated on this GPU: right and slow"
    missing = sorted({name for entry in entries for name in group(entry, "unsupported")})
    if missing:
        notes += f"; not offered by this torch here: {', '.join(missing)}"
    return each_device(
        facts,
        "torch.amp",
        Say("num.amp"),
        judge=judge,
        what="mixed precision",
        fine=lambda where: (
            f"mixed precision skips an infinite step, halves the scale {where}{notes}"
        ),
    )


def check_determinism(facts: Facts) -> Results:
    """Ask whether the same steps give the same bits twice."""

    def judge(say: Say, entry: Mapping[str, Any]) -> Results | None:
        raised, differing = text(entry, "raised"), words(entry, "differing")
        if raised:
            return say.warn(
                "deterministic algorithms are refused for a plain training step",
                why=raised,
                evidence=[seen("torch.determinism", raised)],
            )
        if differing:
            return say.warn(
                f"two equal runs differ in: {', '.join(differing)}",
                why="an algorithm adds in another order each time, or the hardware is not reliable",
                evidence=[seen("torch.determinism", ", ".join(differing))],
                suspects=HARDWARE,
                confidence="possible",
            )
        return None

    return each_device(
        facts,
        "torch.determinism",
        Say("num.determinism"),
        judge=judge,
        what="a deterministic step",
        fine=lambda where: f"the same steps give the same bits twice {where}",
    )


def check_sdpa(facts: Facts) -> Results:
    """Compare the attention back ends with attention written out in float64."""
    usable = sorted(
        {
            text(backend, "name")
            for entry in rows(probe(facts, "torch.sdpa"), "results")
            for backend in rows(entry, "backends")
            if backend.get("max_error") is not None
        }
    )

    def judge(say: Say, entry: Mapping[str, Any]) -> Results | None:
        for backend in rows(entry, "backends"):
            if text(backend, "unsupported"):
                continue
            dtype, error = text(backend, "dtype"), number(backend, "max_error")
            if error is None or error > SDPA_TOLERANCE.get(dtype, 0.0):
                name = f"{text(backend, 'name')} attention in {dtype}"
                return _wrong(say, f"{name} is off by {error}", "torch.sdpa", dict(backend))
        return None if usable else say.error("no attention back end was compared")

    return each_device(
        facts,
        "torch.sdpa",
        Say("num.sdpa"),
        judge=judge,
        what="attention",
        fine=lambda where: f"attention agrees {where}: {', '.join(usable) or 'no back end'}",
    )


def check_graph(facts: Facts) -> Results:
    """Ask whether a captured CUDA graph replays with the right values."""

    def judge(say: Say, entry: Mapping[str, Any]) -> Results | None:
        if entry.get("wrong") != 0:
            return _wrong(say, "a replayed graph gives other values", "torch.graph", dict(entry))
        return None

    return each_device(
        facts,
        "torch.graph",
        Say("num.graph"),
        judge=judge,
        what="capturing a CUDA graph",
        fine=lambda where: f"a captured graph replays exactly {where}",
    )


def check_memory(facts: Facts) -> Results:
    """Ask whether memory is counted right and whether running out of it can be survived."""

    def judge(say: Say, entry: Mapping[str, Any]) -> Results | None:
        expected, peak = integer(entry, "peak_expected"), integer(entry, "peak_bytes")
        if expected is not None and (peak is None or abs(peak - expected) > PEAK_SLACK_BYTES):
            return say.warn(
                f"the peak statistics count {peak} bytes where {expected} were held",
                evidence=[seen("torch.cuda.max_memory_allocated", peak)],
            )
        provoked = group(entry, "out_of_memory")
        if provoked.get("raised") is not True:
            return say.warn(
                "asking for more memory than there is raised nothing",
                why="the driver moves GPU memory to the host, or an allocator stands in between",
                evidence=[seen("torch.memory", dict(provoked))],
            )
        left = integer(entry, "left_over_bytes") or 0
        if left > 0:
            return say.warn(
                f"{in_mib(left)} stay allocated after an out-of-memory error",
                evidence=[seen("torch.cuda.memory_allocated", left)],
            )
        if entry.get("works_after") is not True:
            return _wrong(
                say, "computes wrongly after an out-of-memory error", "torch.memory", dict(entry)
            )
        return None

    return each_device(
        facts,
        "torch.memory",
        Say("num.memory"),
        judge=judge,
        what="using memory up",
        fine=lambda where: f"a provoked out-of-memory error is survived {where}",
    )


def wrong_deal(samples: int, ranks: Sequence[Sequence[int]], *, drop_last: bool) -> str:
    """Return what is wrong with how samples were dealt to ranks, empty when nothing is.

    Every rank gets the same number. Without ``drop_last`` every sample is dealt, and as many again
    as it takes to come out even; with it none is dealt twice and fewer than one round are left out.
    """
    world = len(ranks)
    share = samples // world if drop_last else -(-samples // world)
    sizes = {len(rank) for rank in ranks}
    if sizes != {share}:
        return f"ranks got {sorted(sizes)} samples, not {share} each"
    dealt = Counter(index for rank in ranks for index in rank)
    strangers = sorted(set(dealt) - set(range(samples)))
    if strangers:
        return f"samples that do not exist: {strangers[:5]}"
    twice = sum(dealt.values()) - len(dealt)
    if drop_last:
        return f"{twice} samples dealt twice" if twice else ""
    missing = samples - len(dealt)
    if missing:
        return f"{missing} samples dealt to nobody"
    padding = share * world - samples
    return "" if twice == padding else f"{twice} samples dealt twice, {padding} would even it out"


def check_sampler(facts: Facts) -> Results:
    """Ask whether DistributedSampler covers each sample once, for uneven numbers too."""
    say = Say("num.sampler")
    found = probe(facts, "torch.sampler")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    simulated = rows(found, "cases")
    if not simulated:
        return say.error("torch.sampler told of no case")
    cases = [*simulated, *rows(probe(facts, "torch.collective"), "sampler")]
    for case in cases:
        samples, drop_last = integer(case, "samples") or 0, case.get("drop_last") is True
        epochs = case.get("epochs") or []
        if not epochs:
            return say.error("torch.sampler told of no epoch")
        for ranks in epochs:
            fault = wrong_deal(samples, ranks, drop_last=drop_last)
            if fault:
                return say.fail(
                    f"DistributedSampler: {fault}",
                    why="some samples are trained on more or less often than others",
                    evidence=[seen("torch.sampler", f"{samples} samples, drop_last={drop_last}")],
                )
        if samples > 2 * len(epochs[0]) and epochs[0] == epochs[-1] and len(epochs) > 1:
            return say.fail(
                "DistributedSampler deals the same order in every epoch",
                why="set_epoch has no effect: every epoch sees the data in the same order",
                evidence=[seen("torch.sampler", f"{samples} samples")],
            )
    return say.ok(
        f"DistributedSampler deals each sample once ({len(cases)} cases, uneven ones too)"
    )


def check_dataloader(facts: Facts) -> Results:
    """Ask whether worker processes deliver batches of ordinary size."""
    say = Say("num.dataloader")
    found = probe(facts, "torch.dataloader")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    free, needed = integer(found, "shm_free_bytes"), integer(found, "in_flight_bytes") or 0
    error = text(found, "error")
    if error:
        return failed(
            say,
            "DataLoader workers cannot deliver a batch",
            error,
            "" if free is None else f"{in_mib(free)} free in /dev/shm, {in_mib(needed)} in flight",
            source="torch.dataloader",
        )
    if found.get("wrong"):
        return _wrong(say, "DataLoader mixed samples up", "torch.dataloader", dict(found))
    if not found.get("batches"):
        return say.error("torch.dataloader told of no batch")
    size = in_mib(integer(found, "batch_bytes") or 0)
    return say.ok(f"{found.get('workers')} DataLoader workers deliver batches of {size}")


_AFTER = ("torch.import", "torch.kernel")

CHECKS = (
    Check(
        id="num.matmul",
        title="Matrix products of whole numbers",
        level=Level.QUICK,
        run=check_matmul,
        needs=("torch.matmul",),
        after=_AFTER,
        explanation="""\
Matrices that hold only -1, 0 and 1 are multiplied in float64, float32, float16 and bfloat16 and
compared with the exact product. Every partial sum fits into the shortest of these types, so the
answer does not depend on the order of additions, on TF32 or on the algorithm.

One wrong element means that the GPU, its memory or a library computes wrongly. Training would go
on and end in a worse model, or in NaN, without an error.

First look at the memory errors (hw.ecc, hw.remap) and at Xid messages (hw.xid). If those are
clean and only one type is wrong, compare the loaded libraries (torch.libs) with the wheel's.""",
    ),
    Check(
        id="num.autograd",
        title="First derivatives",
        level=Level.QUICK,
        run=check_autograd,
        needs=("torch.autograd",),
        after=_AFTER,
        explanation="""\
For x=2, w=3, b=1, y = wx + b and loss = y squared the gradients are exactly dx=42, dw=28, db=14
(y is 7, so the derivative of the loss by y is 14). The check also takes the derivative of x
cubed, of a loop and a branch whose course depends on the data, and looks at what zero_grad leaves
behind.

These are the promises every training script rests on. They are checked on each GPU, in whole
numbers, so there is no tolerance behind which a fault could hide.

If this fails while num.matmul passes, suspect the installation: two versions of torch mixed in
one folder, or a patched autograd.""",
    ),
    Check(
        id="num.accum",
        title="Gradient accumulation",
        level=Level.QUICK,
        run=check_accumulation,
        needs=("torch.accumulation",),
        after=_AFTER,
        explanation="""\
The gradient of a batch is computed whole, and in 2, 4, 8 and 32 chunks whose gradients add up.
With whole numbers all of them must be equal to a reference computed without torch, bit for bit,
in four types.

With random data they never are: float32 differs in the seventh digit and bfloat16 in the third.
That is rounding. A difference here is not, since nothing is rounded.""",
    ),
    Check(
        id="num.step",
        title="A real training step",
        level=Level.QUICK,
        run=check_step,
        needs=("torch.step",),
        after=_AFTER,
        explanation="""\
A convolution and two layers are trained for six AdamW steps on the device in float32 and on the
CPU in float64, from the same start. The loss must fall and stay finite, and gradients and losses
must agree within 1e-4.

TF32 is switched off for the comparison, because it alone would account for 1e-3; num.tf32
measures it. The peak of GPU memory is told along the way.""",
    ),
    Check(
        id="num.tf32",
        title="Precision of float32 products",
        level=Level.QUICK,
        run=check_tf32,
        needs=("torch.tf32",),
        after=_AFTER,
        explanation="""\
Multiplying 1 + 2^-12 by one keeps the small part in float32 and loses it in TF32, which has ten
bits of mantissa. So the precision in force is measured, not read from a switch.

torch computes float32 matrix products in float32 unless told otherwise, and float32 convolutions
in TF32 on GPUs that have it. Both are fine as long as you know. To choose:
torch.set_float32_matmul_precision("highest" or "high"), torch.backends.cudnn.allow_tf32.""",
    ),
    Check(
        id="num.second",
        title="Second derivatives",
        level=Level.STANDARD,
        run=check_second_order,
        needs=("torch.second-order",),
        after=_AFTER,
        explanation="""\
Gradient penalties, physics-informed networks and meta-learning differentiate a gradient. The
Hessian of the sum of cubes at 1, 2, 3 is exactly diag(6, 12, 18), and gradgradcheck compares
double backward of a layer with finite differences in float64.""",
    ),
    Check(
        id="num.amp",
        title="Mixed precision",
        level=Level.STANDARD,
        run=check_amp,
        needs=("torch.amp",),
        after=_AFTER,
        explanation="""\
Three float16 steps with a gradient scaler: the second one gets an infinite gradient, which must
leave the weights alone and halve the scale, and the third must move them again. Then bfloat16
steps without a scaler, whose loss must fall while the weights stay float32.

GPUs before compute capability 8.0 compute bfloat16 by emulation: right, and slow. Use float16
there.""",
    ),
    Check(
        id="num.determinism",
        title="The same bits twice",
        level=Level.STANDARD,
        run=check_determinism,
        needs=("torch.determinism",),
        after=_AFTER,
        explanation="""\
The same steps run twice under torch.use_deterministic_algorithms(True); losses and gradients must
be equal bit for bit. A difference is a warning that names the part. Look for an operation with
atomic additions first, and at the hardware when a plain matrix product is among the differing.""",
    ),
    Check(
        id="num.sdpa",
        title="Attention back ends",
        level=Level.STANDARD,
        run=check_sdpa,
        needs=("torch.sdpa",),
        after=_AFTER,
        explanation="""\
scaled_dot_product_attention picks one of several back ends by type, shape and GPU. Each one that
is available here is compared with attention written out in float64: within 1e-4 in float32, 4e-3
in float16 and 3e-2 in bfloat16. Back ends that are not available are named, not failed.""",
    ),
    Check(
        id="num.graph",
        title="CUDA graphs",
        level=Level.STANDARD,
        run=check_graph,
        needs=("torch.graph",),
        after=_AFTER,
        explanation="""\
A step is captured into a CUDA graph and replayed on other data; the values must be exact, since
the data are whole numbers. Servers and torch.compile's reduce-overhead mode depend on it. If
capturing fails while num.step passes, another thread or library called CUDA during the capture.""",
    ),
    Check(
        id="num.memory",
        title="Memory accounting and recovery",
        level=Level.STANDARD,
        run=check_memory,
        needs=("torch.memory",),
        after=_AFTER,
        explanation="""\
Two blocks of known size are held and the peak statistics must count them. Then the process
allocates up to a cap of its own until torch raises its out-of-memory error, frees everything, and
must compute rightly again. The cap keeps the test from taking memory that others on the GPU use.

Where asking for more than there is raises nothing, GPU memory spills into the host's (the Windows
driver does that), and jobs get slow instead of failing.""",
    ),
    Check(
        id="num.sampler",
        title="Samples dealt to ranks",
        level=Level.STANDARD,
        run=check_sampler,
        needs=("torch.sampler",),
        uses=("torch.collective",),
        after=("torch.import",),
        explanation="""\
DistributedSampler must give every rank the same number of samples and cover the data set. When
the numbers do not come out even it repeats just enough samples to fill the last round, or leaves
the rest out with drop_last. Repeated samples count twice in an evaluation: divide by the true
number there. Each epoch needs set_epoch, or the order never changes.""",
    ),
    Check(
        id="num.dataloader",
        title="DataLoader workers",
        level=Level.STANDARD,
        run=check_dataloader,
        needs=("torch.dataloader",),
        after=("torch.import",),
        explanation="""\
Two worker processes deliver batches of 64 colour images in float32, 37 MiB each. Batches travel
through /dev/shm, of which a container has 64 MiB unless told otherwise; then a worker dies of a
bus error in the middle of training.

Start the container with --shm-size=8g or --ipc=host; in Kubernetes mount an emptyDir of medium
Memory at /dev/shm.""",
    ),
)
