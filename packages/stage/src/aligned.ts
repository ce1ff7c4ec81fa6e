declare const WebAssembly:
  | {
      Memory: new (size: {
        initial: number;
        maximum: number;
        shared: true;
      }) => { readonly buffer: SharedArrayBuffer };
    }
  | undefined;

/** Where memory of WebAssembly starts and ends, and more than any disk's block. */
const ALIGNMENT = 65_536;

/**
 * `count` buffers of `bytes` each, aligned as O_DIRECT wants it. JavaScript gives such memory in one place: the
 * memory of WebAssembly. It is shared, so that threads may hand it to each other. Where there is none (`--jitless`, a
 * limit of address space) the buffers are of ordinary memory, and O_DIRECT answers EINVAL as on a filesystem without it.
 */
export function alignedBuffers(count: number, bytes: number): Uint8Array<SharedArrayBuffer>[] {
  const each = Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;
  const memory = sharedMemory(count * each);
  return Array.from({ length: count }, (_, n) => new Uint8Array(memory, n * each, bytes));
}

function sharedMemory(bytes: number): SharedArrayBuffer {
  const pages = bytes / ALIGNMENT;
  try {
    if (typeof WebAssembly !== "undefined")
      return new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true }).buffer;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
  }
  return new SharedArrayBuffer(bytes);
}
