import type { StructureFault, StructureFaultKind } from "./types.ts";

/** Faults of one kind in one file beyond this many are counted, not listed. */
const MOST_ALIKE = 200;

/** Collects faults; many of the same kind in the same file end in one that tells how many more there are. */
export class FaultCollector {
  readonly faults: StructureFault[] = [];
  readonly #alike = new Map<string, { count: number; rest?: StructureFault }>();

  add(fault: StructureFault): void {
    const key = `${fault.kind} ${fault.path}`;
    const alike = this.#alike.get(key) ?? { count: 0 };
    this.#alike.set(key, alike);
    if (++alike.count <= MOST_ALIKE) this.faults.push(fault);
    else {
      if (!alike.rest) {
        alike.rest = { path: fault.path, kind: fault.kind, expected: fault.expected, found: "" };
        this.faults.push(alike.rest);
      }
      alike.rest.found = `${alike.count - MOST_ALIKE} more faults of this kind in this file`;
    }
  }
}

/** One line of a fault for people. */
export function describeFault({ path, kind, tensor, expected, found }: StructureFault): string {
  return `${path}: ${kind}${tensor === undefined ? "" : ` ${tensor}`}: expected ${expected}, found ${found}`;
}

/** Kinds that mean the config, not the data, is refused (exit 2 instead of 3). */
export const isConfigFault = (kind: StructureFaultKind): boolean => kind === "config";
