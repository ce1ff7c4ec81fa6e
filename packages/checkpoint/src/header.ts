import { isUtf8 } from "node:buffer";
import { runAtOnce, type Steps } from "@k3/stage";
import { DTYPES, dtypeAt, UNKNOWN_DTYPE } from "./dtypes.ts";
import { checkLayout } from "./header-layout.ts";
import type { HeaderTable } from "./header-table.ts";
import { HeaderSyntaxError, JsonCursor } from "./json-cursor.ts";
import type { StructureFaultKind } from "./types.ts";

/** Like the reference implementation of the format, which refuses headers above 100 MB (safetensors `MAX_HEADER_SIZE`). */
export const MAX_HEADER_BYTES = 100_000_000;
/** No tensor of any model has more dimensions; bounds what one entry can make us keep. */
const MAX_DIMENSIONS = 32;
/** A file with more faults than this is not worth listing further. */
const MAX_FAULTS = 1000;

/** A fault of one file; which file is for the caller to say. */
export interface HeaderFault {
  kind: StructureFaultKind;
  tensor?: string;
  expected: string;
  found: string;
}

/**
 * Parses the JSON header of a safetensors file, strictly: every dtype known, every shape and offset a whole number
 * below 2^53, dtype x shape = span, no name twice, and the spans fill the `dataBytes` behind the header without
 * overlap, gap or rest. Never throws on any bytes: all faults are returned (a syntax fault ends the list). The entries
 * that could be read are left in `table`; names are byte ranges of `json`, in which escapes are decoded in place.
 */
export function parseHeader(json: Uint8Array, dataBytes: number, table: HeaderTable): HeaderFault[] {
  return runAtOnce(parseHeaderSteps(json, dataBytes, table));
}

/** parseHeader in steps of 64 entries. */
export function* parseHeaderSteps(
  json: Uint8Array,
  dataBytes: number,
  table: HeaderTable,
): Steps<HeaderFault[]> {
  const faults = new FaultList();
  table.reset(json);
  if (!isUtf8(json)) {
    faults.add({ kind: "header-syntax", expected: "UTF-8 text", found: "bytes that are not UTF-8" });
    return faults.list;
  }
  const cursor = new JsonCursor(json);
  try {
    yield* parseEntries(cursor, table, faults);
  } catch (error) {
    if (!(error instanceof HeaderSyntaxError)) throw error;
    faults.add({
      kind: "header-syntax",
      expected: `${error.expected} at byte ${8 + error.at}`,
      found:
        error.at >= json.length
          ? "the end of the header"
          : JSON.stringify(cursor.text(error.at, error.at + 24)),
    });
    return faults.list;
  }
  yield;
  checkLayout(table, dataBytes, (fault) => faults.add(fault));
  return faults.list;
}

class FaultList {
  readonly list: HeaderFault[] = [];
  #more = 0;

  add(fault: HeaderFault): void {
    if (this.list.length < MAX_FAULTS) this.list.push(fault);
    else {
      this.#more++;
      this.list[MAX_FAULTS] = {
        kind: fault.kind,
        expected: `at most ${MAX_FAULTS} faults to list`,
        found: `${this.#more} more`,
      };
    }
  }
}

const STEP = 64;

function* parseEntries(cursor: JsonCursor, table: HeaderTable, faults: FaultList): Steps<void> {
  // The format wants the header to start with the brace itself; only behind the object there may be padding.
  if (cursor.bytes[0] !== 0x7b) cursor.fail(`"{"`);
  cursor.at = 1;
  let metadata = false;
  let entries = 0;
  if (!cursor.closes(0x7d)) {
    do {
      cursor.string();
      const { start, end } = cursor;
      cursor.take(0x3a);
      if (isKey(cursor, start, end, "__metadata__")) {
        if (metadata)
          faults.add({ kind: "duplicate", tensor: "__metadata__", expected: "one entry", found: "two" });
        metadata = true;
        parseMetadata(cursor, faults);
      } else {
        parseEntry(cursor, start, end, table, faults);
        if (++entries % STEP === 0) yield;
      }
    } while (cursor.more(0x7d));
  }
  if (cursor.peek() !== -1) cursor.fail("nothing but spaces after the header's object");
}

function isKey(cursor: JsonCursor, start: number, end: number, key: string): boolean {
  if (end - start !== key.length) return false;
  for (let i = 0; i < key.length; i++) if (cursor.bytes[start + i] !== key.charCodeAt(i)) return false;
  return true;
}

function parseMetadata(cursor: JsonCursor, faults: FaultList): void {
  const fault = (found: string) =>
    faults.add({ kind: "header-field", tensor: "__metadata__", expected: "an object of strings", found });
  if (cursor.peek() !== 0x7b) {
    cursor.skip();
    fault("another value");
    return;
  }
  cursor.at++;
  if (cursor.closes(0x7d)) return;
  do {
    cursor.string();
    const key = cursor.text(cursor.start, cursor.end);
    cursor.take(0x3a);
    if (cursor.peek() !== 0x22) fault(`${key} is no string`);
    cursor.skip();
  } while (cursor.more(0x7d));
}

/** Reads `{"dtype":..,"shape":[..],"data_offsets":[..]}` with its members in any order. */
function parseEntry(
  c: JsonCursor,
  nameStart: number,
  nameEnd: number,
  table: HeaderTable,
  faults: FaultList,
): void {
  const name = () => table.text(nameStart, nameEnd);
  const fault = (kind: StructureFaultKind, expected: string, found: string) =>
    faults.add({ kind, tensor: name(), expected, found });
  if (c.peek() !== 0x7b) {
    const at = c.at;
    c.skip();
    fault("header-field", "an object with dtype, shape and data_offsets", c.text(at, c.at));
    return;
  }
  c.at++;
  let dtype = -1;
  let elements = -1;
  let offsets = -1;
  const dimsFrom = table.dimensions;
  if (!c.closes(0x7d)) {
    do {
      c.string();
      const { start, end } = c;
      c.take(0x3a);
      if (isKey(c, start, end, "dtype") && dtype < 0) dtype = parseDtype(c, fault);
      else if (isKey(c, start, end, "shape") && elements === -1) elements = parseShape(c, table, fault);
      else if (isKey(c, start, end, "data_offsets") && offsets < 0) offsets = parseOffsets(c, fault);
      else {
        fault("header-field", "dtype, shape and data_offsets, each once", `another "${c.text(start, end)}"`);
        c.skip();
      }
    } while (c.more(0x7d));
  }
  if (dtype < 0) fault("header-field", "a dtype", "none");
  if (elements === -1) fault("header-field", "a shape", "none");
  if (offsets < 0) fault("header-field", "data_offsets", "none");
  const usable = offsets === 1;
  const bits = DTYPES[dtype]?.[1];
  let sound = usable && bits !== undefined && elements >= 0;
  if (sound && (elements * bits!) / 8 !== pair.end - pair.begin) {
    sound = false;
    const shape = [...table.dims.subarray(dimsFrom, table.dimensions)].join(", ");
    fault(
      "span",
      `${(elements * bits!) / 8} bytes for ${DTYPES[dtype]![0]} [${shape}]`,
      `${pair.end - pair.begin} bytes at ${pair.begin}`,
    );
  }
  if (!usable) table.lostSpans++;
  const { begin, end } = usable ? pair : NOWHERE;
  if (!table.add(nameStart, nameEnd, sound ? dtype : UNKNOWN_DTYPE, dimsFrom, begin, end)) {
    fault("duplicate", "each tensor once", "its name twice in this file");
  }
}

type Fault = (kind: StructureFaultKind, expected: string, found: string) => void;
/** The data_offsets just parsed: one object for all entries, so that half a million of them make no garbage. */
const pair = { begin: 0, end: 0 };
const NOWHERE = { begin: -1, end: -1 };

function parseDtype(c: JsonCursor, fault: Fault): number {
  if (c.peek() !== 0x22) {
    const at = c.at;
    c.skip();
    fault("unknown-dtype", "a dtype of the safetensors format", c.text(at, c.at));
    return UNKNOWN_DTYPE;
  }
  c.string();
  const dtype = dtypeAt(c.bytes, c.start, c.end);
  if (dtype === UNKNOWN_DTYPE) {
    fault("unknown-dtype", "a dtype of the safetensors format", JSON.stringify(c.text(c.start, c.end)));
  }
  return dtype;
}

/** The product of the dimensions, or -2 when the shape is at fault. Doubles do not wrap, and 2^53 is checked. */
function parseShape(c: JsonCursor, table: HeaderTable, fault: Fault): number {
  c.peek();
  const { at } = c;
  const bad = () => {
    fault("shape", "a list of whole numbers, none negative, product below 2^53", c.text(at, c.at));
    return -2;
  };
  if (c.peek() !== 0x5b) {
    c.skip();
    return bad();
  }
  c.at++;
  let elements = 1;
  let good = true;
  let count = 0;
  if (!c.closes(0x5d)) {
    do {
      if (!isNumberNext(c)) {
        c.skip();
        good = false;
        continue;
      }
      c.number();
      if (c.value < 0 || ++count > MAX_DIMENSIONS) good = false;
      else {
        table.addDimension(c.value);
        elements *= c.value;
      }
    } while (c.more(0x5d));
  }
  return good && elements <= Number.MAX_SAFE_INTEGER ? elements : bad();
}

/** Fills `pair`: 1 when both offsets are usable, 0 when they are at fault. */
function parseOffsets(c: JsonCursor, fault: Fault): number {
  let count = 0;
  let good = c.peek() === 0x5b;
  const { at } = c;
  if (!good) c.skip();
  else {
    c.at++;
    if (!c.closes(0x5d)) {
      do {
        if (!isNumberNext(c)) {
          c.skip();
          good = false;
          continue;
        }
        c.number();
        if (c.value < 0) good = false;
        else if (count === 0) pair.begin = c.value;
        else if (count === 1) pair.end = c.value;
        count++;
      } while (c.more(0x5d));
    }
  }
  if (good && count === 2 && pair.begin <= pair.end) return 1;
  fault("offsets", "two whole numbers below 2^53, the second not before the first", c.text(at, c.at));
  return 0;
}

function isNumberNext(c: JsonCursor): boolean {
  const next = c.peek();
  return next === 0x2d || (next >= 0x30 && next <= 0x39);
}
