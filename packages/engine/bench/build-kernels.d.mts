/** Builds `native/kernels` and returns the directory of its executables. */
export function buildKernels(sanitize?: string): string;
