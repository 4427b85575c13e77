"""What a healthy GPU reaches: floors and usual values, each with its source and the published peak.

Three readings per row. ``peak`` is the vendor's figure and only guards the row: a test holds every
floor between 30 % and 90 % of it, because published tables of this kind have entries that are off
by a factor of ten or a thousand. ``usual`` is what people measured. Below ``floor`` a finding is a
warning, below ``failing`` a failure. A GPU without a row gets its number and no verdict.
"""

from __future__ import annotations

import re

from gpuenv.values import dataclass

USABLE_SHARE = 0.8
"""Of the usual value: spreads of 5 % and more between equal GPUs are normal."""

FAILING_SHARE = 0.5

STAS00 = "ml-engineering (Stas Bekman), measured, 2026-08"
AZURE = "azurehpc-health-checks, node configuration, 2026-05"
DCGM = "NVIDIA DCGM, diag-skus.yaml (0.75 of NVIDIA's reference), 2026-07"
NCCL_TESTS = "nccl-tests issue 194, measured"
RTX6K = "voipmonitor/rtx6kpro, measured, 2026"

A100_SXM_80 = r"NVIDIA A100-SXM4-80GB"
A100_SXM = r"NVIDIA A100-SXM4-[48]0GB"
A100_PCIE_80 = r"NVIDIA A100 80GB PCIe"
A100_PCIE = r"NVIDIA A100(-PCIE-40GB| 80GB PCIe)"
H100_SXM = r"NVIDIA H100 80GB HBM3"
H100_PCIE = r"NVIDIA H100 PCIe"
H100_NVL = r"NVIDIA H100 NVL"
H200 = r"NVIDIA H200"
GH200 = r"NVIDIA GH200 .*"
B200 = r"NVIDIA B200"
GB200 = r"NVIDIA GB200"
V100_SXM = r"(NVIDIA )?(Tesla )?V100-SXM[23]-.*"
RTX_PRO_6000 = r"NVIDIA RTX PRO 6000 Blackwell .*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One row: what GPUs of one model reach.

    Attributes:
        model: Pattern of the whole device name; a MIG slice or a virtual GPU does not match.
        gpus: How many take part; 0 where the number does not matter.
        usual: Measured on healthy machines; ``None`` where the source gives a floor only.
        floor: Below it something is wrong or in the way.
        peak: The vendor's published figure in the same unit.
    """

    model: str
    floor: float
    peak: float
    source: str
    usual: float | None = None
    gpus: int = 0

    @property
    def failing(self) -> float:
        """Below it the finding is a failure."""
        return (self.usual if self.usual is not None else self.floor / USABLE_SHARE) * FAILING_SHARE


def _measured(
    model: str, usual: float, peak: float, source: str = STAS00, gpus: int = 0
) -> Threshold:
    return Threshold(
        model=model,
        usual=usual,
        floor=round(usual * USABLE_SHARE, 1 if usual < 100 else None),  # noqa: PLR2004 - digits
        peak=peak,
        source=source,
        gpus=gpus,
    )


MATMUL_TFLOPS = (
    _measured(A100_SXM, 271.2, 312),
    _measured(A100_PCIE, 252.9, 312),
    _measured(H100_SXM, 794.5, 989),
    # random data: 788 on one H200; zeros would have given 894
    _measured(H200, 788, 989, "measured on random data on one H200"),
    _measured(GH200, 828.6, 989),
    _measured(B200, 1745, 2250),
    _measured(GB200, 1822, 2500),
)
"""Dense bfloat16 matmul, TFLOP/s; peaks from NVIDIA's data sheets, without sparsity."""

MEMORY_GB_S = tuple(
    Threshold(model=model, floor=floor, peak=peak, source=DCGM)
    for model, floor, peak in (
        (A100_SXM_80, 1173, 2039),
        (A100_PCIE_80, 970, 1935),
        (H100_SXM, 1905, 3350),
        (H100_NVL, 2043, 3938),
        (H200, 2212, 4800),
        (B200, 4070, 8000),
        (r"NVIDIA L40S", 525, 864),
        (r"NVIDIA L4", 198, 300),
        (r"NVIDIA A10", 480, 600),
        (r"NVIDIA A10G", 363, 600),
        (r"(NVIDIA )?Tesla T4", 183, 320),
        (r"NVIDIA A40", 424, 696),
        (r"NVIDIA A30", 585, 933),
        (r"NVIDIA RTX A6000", 506, 768),
        (V100_SXM, 608, 900),
    )
)
"""A copy within the GPU's memory, GB/s read and written; peaks from NVIDIA's data sheets."""

ALLREDUCE_GB_S = (
    _measured(H200, 363, 450, gpus=4),
    _measured(H200, 414, 450, gpus=5),
    _measured(H200, 436, 450, gpus=6),
    _measured(H200, 460, 450, gpus=7),
    _measured(H200, 473, 450, gpus=8),
    _measured(B200, 673, 900, gpus=4),
    _measured(B200, 678, 900, gpus=5),
    _measured(B200, 778, 900, gpus=6),
    _measured(B200, 811, 900, gpus=7),
    _measured(B200, 838, 900, gpus=8),
    _measured(H100_SXM, 460, 450, AZURE, gpus=8),
    _measured(A100_SXM, 235, 300, f"{STAS00}; {AZURE} asks for 228", gpus=8),
    Threshold(model=V100_SXM, floor=110, peak=150, source=AZURE, gpus=8),
    _measured(H100_NVL, 208, 300, AZURE, gpus=2),
    _measured(H100_PCIE, 116, 300, NCCL_TESTS, gpus=2),
    _measured(A100_PCIE, 25, 31.5, AZURE, gpus=4),
    Threshold(model=RTX_PRO_6000, floor=19, peak=63, source=RTX6K, gpus=8),
)
"""Bus bandwidth of an all-reduce of 1 GiB and more, GB/s.

The peak is the GPU's link in one direction. With NVLS the switch adds in the network, and a bus
bandwidth above the wire's is right.
"""

PEER_GB_S = (
    Threshold(model=H100_SXM, floor=335, peak=450, source=AZURE),
    _measured(H200, 396, 450, f"{STAS00} (nvbandwidth, one direction)"),
    Threshold(model=A100_SXM, floor=235, peak=300, source=AZURE),
    _measured(RTX_PRO_6000, 39, 63, f"{RTX6K}, between two sockets"),
)
"""A copy from one GPU to another, one direction, GB/s; the peak is the link's."""

PCIE_GB_S = {
    3: Threshold(model="PCIe 3.0 x16", floor=9, peak=15.75, source=AZURE),
    4: Threshold(model="PCIe 4.0 x16", floor=21, peak=31.5, source=AZURE),
    5: Threshold(
        model="PCIe 5.0 x16",
        floor=48,
        usual=55.1,
        peak=63,
        source=f"{AZURE}; usual: {STAS00}",
    ),
}
"""A pinned copy between host and GPU by PCIe generation, for sixteen lanes, GB/s."""

ALL_TABLES: dict[str, tuple[Threshold, ...]] = {
    "matmul": MATMUL_TFLOPS,
    "memory": MEMORY_GB_S,
    "all-reduce": ALLREDUCE_GB_S,
    "peer": PEER_GB_S,
    "pcie": tuple(PCIE_GB_S.values()),
}


def find(table: tuple[Threshold, ...], model: str, *, gpus: int = 0) -> Threshold | None:
    """Return the row of a GPU model, ``None`` where there is none."""
    for row in table:
        if row.gpus in (0, gpus) and re.fullmatch(row.model, model):
            return row
    return None


def link_rate(generation: int, lanes: int) -> Threshold | None:
    """Return the floor of a PCIe link of fewer lanes, ``None`` for an unknown generation."""
    full = PCIE_GB_S.get(generation)
    if full is None or not lanes:
        return None
    share = lanes / 16
    return Threshold(
        model=f"PCIe {generation}.0 x{lanes}",
        floor=full.floor * share,
        usual=None if full.usual is None else full.usual * share,
        peak=full.peak * share,
        source=full.source,
    )
