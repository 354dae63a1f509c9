"""An export in words."""

from __future__ import annotations

from layerprobe.system.wording import as_size
from layerprobe.workflow.export.writing import Written

_MEGABYTE = 1_000_000


def export_lines(written: Written) -> list[str]:
    """What was exported, its files and the result of the check, a line each."""
    bits = written.similarity == "hamming"
    size = -(-written.dim // 8) if bits else 4 * written.dim
    numbers = f"{written.dim:,} {'bits' if bits else 'numbers'}, {size:,} byte{'' if size == 1 else 's'} an image"
    fitted = f"; map fitted on {written.fitted_on}" if written.fitted_on else ""
    sizes = {name: as_size(size) if size >= _MEGABYTE else f"{size:,} bytes" for name, size in written.files.items()}
    files = ", ".join(f"{name} ({size})" for name, size in sizes.items())
    lines = [f"{written.name}: {numbers}{fitted}", f"  {written.folder}: {files}"]
    lines.append(f"  checked on {written.checked}:")
    for name, agreement in written.check.items():
        if agreement.cosine is None:
            share = 100 * agreement.difference
            agreement_text = (
                f"{share:.2f} % of bits differ, none of {agreement.compared:,} whose numbers are not near 0"
            )
        else:
            agreement_text = (
                f"largest difference {agreement.difference:.1e}, cosine at least 1 - {1 - agreement.cosine:.1e},"
                f" {agreement.compared} nearest neighbours the same"
            )
        lines.append(f"    {name}: {agreement_text}")
    return lines
