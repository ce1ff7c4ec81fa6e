import type { RankTable } from "./rank-table.ts";

/** Up to here a scan for the lowest rank is faster than a heap. */
const SCAN_LIMIT = 96;
const POSITIONS = 2 ** 32;

const scanStarts = new Int32Array(SCAN_LIMIT + 2);
const scanRanks = new Int32Array(SCAN_LIMIT + 2);
/** Greater than any rank: the pair at this place is no token. */
const NO_MERGE = 0x7fffffff;

/**
 * Byte-pair encoding of `bytes[start, end)`: beginning with single bytes, the adjacent pair whose concatenation has the
 * lowest rank is merged, leftmost first among equals, until no concatenation is a token. Calls `emit(from, to)` for each
 * part in order. O(n log n) for long pieces.
 */
export function mergeBytePairs(
  table: RankTable,
  bytes: Uint8Array,
  start: number,
  end: number,
  emit: (from: number, to: number) => void,
): void {
  if (end - start <= SCAN_LIMIT) mergeByScan(table, bytes, start, end, emit);
  else mergeByHeap(table, bytes, start, end, emit);
}

function mergeByScan(
  table: RankTable,
  bytes: Uint8Array,
  start: number,
  end: number,
  emit: (from: number, to: number) => void,
): void {
  const starts = scanStarts;
  const ranks = scanRanks;
  let parts = end - start;
  for (let i = 0; i <= parts; i++) starts[i] = start + i;
  const rankAt = (i: number): number => {
    if (i + 2 > parts) return NO_MERGE;
    const rank = table.lookup(bytes, starts[i]!, starts[i + 2]!);
    return rank < 0 ? NO_MERGE : rank;
  };
  for (let i = 0; i < parts; i++) ranks[i] = rankAt(i);
  for (;;) {
    let best = 0;
    for (let i = 1; i < parts; i++) if (ranks[i]! < ranks[best]!) best = i;
    if (ranks[best] === NO_MERGE) break;
    for (let i = best + 1; i < parts; i++) {
      starts[i] = starts[i + 1]!;
      ranks[i] = ranks[i + 1]!;
    }
    parts -= 1;
    ranks[best] = rankAt(best);
    if (best > 0) ranks[best - 1] = rankAt(best - 1);
  }
  for (let i = 0; i < parts; i++) emit(starts[i]!, starts[i + 1]!);
}

/**
 * The same with a linked list of parts (a part is named by the offset of its first byte) and a binary min-heap of
 * rank * 2^32 + offset. A heap entry is stale when the rank at its offset has changed since; it is skipped.
 */
function mergeByHeap(
  table: RankTable,
  bytes: Uint8Array,
  start: number,
  end: number,
  emit: (from: number, to: number) => void,
): void {
  const length = end - start;
  const next = new Int32Array(length + 1);
  const previous = new Int32Array(length + 1);
  const ranks = new Int32Array(length + 1).fill(NO_MERGE);
  // One entry per adjacent pair at first, and at most two more per merge.
  const heap = new Float64Array(3 * length);
  let size = 0;
  const push = (key: number): void => {
    let at = size++;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (heap[parent]! <= key) break;
      heap[at] = heap[parent]!;
      at = parent;
    }
    heap[at] = key;
  };
  const pop = (): number => {
    const top = heap[0]!;
    const key = heap[--size]!;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= size) break;
      if (child + 1 < size && heap[child + 1]! < heap[child]!) child += 1;
      if (heap[child]! >= key) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = key;
    return top;
  };
  const update = (at: number): void => {
    const second = next[at]!;
    const rank = second < length ? table.lookup(bytes, start + at, start + next[second]!) : -1;
    ranks[at] = rank < 0 ? NO_MERGE : rank;
    if (rank >= 0) push(rank * POSITIONS + at);
  };
  for (let i = 0; i <= length; i++) {
    next[i] = i + 1;
    previous[i] = i - 1;
  }
  for (let i = 0; i < length; i++) update(i);
  while (size > 0) {
    const key = pop();
    const rank = Math.floor(key / POSITIONS);
    const at = key - rank * POSITIONS;
    if (ranks[at] !== rank) continue;
    const merged = next[at]!;
    const after = next[merged]!;
    ranks[merged] = NO_MERGE;
    next[at] = after;
    previous[after] = at;
    update(at);
    if (at > 0) update(previous[at]!);
  }
  for (let at = 0; at < length; at = next[at]!) emit(start + at, start + next[at]!);
}
