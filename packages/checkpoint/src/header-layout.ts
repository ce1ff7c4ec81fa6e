import type { HeaderFault } from "./header.ts";
import type { HeaderTable } from "./header-table.ts";

/**
 * Checks that the spans of a header fill the `dataBytes` behind it: in bounds, none overlapping another, no gap
 * between them, nothing left over. The entries may stand in any order.
 */
export function checkLayout(
  table: HeaderTable,
  dataBytes: number,
  report: (fault: HeaderFault) => void,
): void {
  const order = placedInOrder(table);
  let reach = 0;
  let last = -1;
  let firstOutside = -1;
  let outside = 0;
  let broken = false;
  const deferred: HeaderFault[] = [];
  for (const i of order) {
    const begin = table.begin[i]!;
    const end = table.end[i]!;
    if (begin < reach && end > begin) {
      broken = true;
      report({
        kind: "overlap",
        tensor: table.name(i),
        expected: `to start at ${reach} or later, behind ${table.name(last)}`,
        found: `bytes ${begin} to ${end}`,
      });
    } else if (begin > reach && table.lostSpans === 0) {
      broken = true;
      report({
        kind: "gap",
        tensor: table.name(i),
        expected: `to start at ${reach}, where ${last < 0 ? "the data starts" : `${table.name(last)} ends`}`,
        found: `a start at ${begin}: ${begin - reach} bytes belong to no tensor`,
      });
    }
    if (end > dataBytes) {
      outside++;
      if (firstOutside < 0) firstOutside = i;
      if (deferred.length < 20) {
        deferred.push({
          kind: "truncated",
          tensor: table.name(i),
          expected: `to end at byte ${dataBytes} of the data or before`,
          found: `an end at ${end}`,
        });
      }
    }
    if (end >= reach) {
      reach = end;
      last = i;
    }
  }
  if (outside > 0) {
    // Spans that follow each other without a fault mean a short file; otherwise it is the offsets that are wrong.
    if (broken) {
      const more = outside - deferred.length;
      if (more > 0) deferred.at(-1)!.found += `; ${more} more end outside the file`;
      for (const fault of deferred) report(fault);
    } else {
      report({
        kind: "truncated",
        tensor: table.name(firstOutside),
        expected: `${reach} bytes of data`,
        found: `${dataBytes}: ${outside} tensor${outside === 1 ? "" : "s"} end outside the file, ${table.name(firstOutside)} first`,
      });
    }
  } else if (reach < dataBytes && table.lostSpans === 0) {
    report({
      kind: "trailing-bytes",
      expected: `${reach} bytes of data`,
      found: `${dataBytes}: ${dataBytes - reach} bytes after the last tensor`,
    });
  }
}

/** Indices of the entries that have a place, by begin, then end; without sorting when they are in order already. */
function placedInOrder(table: HeaderTable): Uint32Array {
  const { begin, end } = table;
  const order = new Uint32Array(table.count);
  let placed = 0;
  let sorted = true;
  for (let i = 0; i < table.count; i++) {
    if (begin[i]! < 0) continue;
    if (placed > 0 && sorted) {
      const before = order[placed - 1]!;
      if (begin[before]! > begin[i]! || (begin[before]! === begin[i]! && end[before]! > end[i]!))
        sorted = false;
    }
    order[placed++] = i;
  }
  const used = order.subarray(0, placed);
  return sorted ? used : used.sort((a, b) => begin[a]! - begin[b]! || end[a]! - end[b]!);
}
