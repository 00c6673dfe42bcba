"""Decode attention, bfloat16: one query a sequence over its paged keys and values, query heads in groups.

q and o are (sequences, heads, d). k_pages and v_pages are (pages, rows of a page, key heads, d); row t of sequence i
lies in page table[i, t // rows of a page]. lengths[i] rows are valid; table entries past them point at any page.
Query head j reads key head j // (heads / key heads). Scores and sums are accumulated in float32. Lengths are ragged,
between half and all of `s`, and follow from the case; which page holds what is drawn.
"""

import torch

from evo_kernel.tasks import vendor

CASES = {
    "check": [
        {"b": 3, "h": 4, "hk": 2, "s": 67, "d": 64, "page": 16},
        {"b": 2, "h": 2, "hk": 1, "s": 33, "d": 128, "page": 32},
    ],
    "search": [
        {"b": 64, "h": 32, "hk": 8, "s": 8192, "d": 128, "page": 256},
        {"b": 8, "h": 32, "hk": 8, "s": 32768, "d": 128, "page": 64},
    ],
    "confirm": [
        {"b": 128, "h": 32, "hk": 8, "s": 4096, "d": 128, "page": 64},
        {"b": 1, "h": 32, "hk": 4, "s": 131072, "d": 128, "page": 256},
        {"b": 33, "h": 16, "hk": 4, "s": 12289, "d": 64, "page": 64},
    ],
}
SEED = "seed.py"


def lengths_of(case):
    """Valid rows of each sequence: s for the first, irregular between s / 2 and s for the others."""
    return [case["s"] - i * 7919 % (case["s"] // 2) for i in range(case["b"])]


def pages_of(case):
    return [-(-length // case["page"]) for length in lengths_of(case)]


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    counts = pages_of(case)
    q = torch.randn(case["b"], case["h"], case["d"], **draw)
    k, v = (torch.randn(sum(counts), case["page"], case["hk"], case["d"], **draw) for _ in range(2))
    order = torch.randperm(sum(counts), generator=generator, device=device)
    rows, first = [], 0
    for count in counts:
        rows.append(list(range(first, first + count)) + [0] * (max(counts) - count))
        first += count
    table = order[torch.tensor(rows, device=device)].to(torch.int32)
    return q, k, v, table, torch.tensor(lengths_of(case), dtype=torch.int32, device=device)


def reference(q, k_pages, v_pages, table, lengths):
    b, _, d = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    rows = table.shape[1] * k_pages.shape[1]
    allowed = torch.arange(rows, device=q.device) < lengths[:, None]  # (b, rows)
    heads = []
    for head, group in enumerate(q.to(wide).chunk(k_pages.shape[2], dim=1)):  # one key head at a time, for memory
        k, v = (pages[:, :, head][table.long()].reshape(b, rows, d).to(wide) for pages in (k_pages, v_pages))
        scores = (group @ k.mT * d**-0.5).masked_fill(~allowed[:, None], float("-inf"))
        heads.append(scores.softmax(-1) @ v)
    return torch.cat(heads, dim=1).to(q.dtype)


reference.compiled_baseline = False  # its loop over heads is for memory, not for speed


def gathered(q, k_pages, v_pages, table, lengths):
    """Copies the pages of every sequence together, then cuDNN or the next best under a mask."""
    k, v = (pages[table.long()].flatten(1, 2).transpose(1, 2) for pages in (k_pages, v_pages))
    allowed = torch.arange(k.shape[2], device=q.device) < lengths[:, None, None, None]
    return vendor.masked_sdpa(q.unsqueeze(2), k, v, allowed).squeeze(2)


def flash(q, k_pages, v_pages, table, lengths):
    return vendor.flash_paged(q, k_pages, v_pages, table, lengths)


def flex(q, k_pages, v_pages, table, lengths):
    return vendor.flex_paged(q, k_pages, v_pages, table, lengths)


BASELINES = {"eager": gathered, "flash": flash, "flex": flex}


def flops(case):
    return 4.0 * case["h"] * case["d"] * sum(lengths_of(case))


def bytes(case):
    """Only what is valid: rows of keys and values, entries of the table."""
    rows = 2 * 2 * case["hk"] * case["d"] * sum(lengths_of(case))
    return rows + 2 * 2 * case["b"] * case["h"] * case["d"] + 4 * (sum(pages_of(case)) + case["b"])
