export function buildEviction(
  directory: string,
  native?: string,
): (...settings: readonly (string | number)[]) => string;
