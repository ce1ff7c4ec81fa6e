import { availableBytes, StageError } from "@k3/stage";

/** The error of a disk that became full with what was still needed, about, and what there is; any other as it is. */
export async function withNumbers(error: unknown, dir: string, needed: number): Promise<unknown> {
  const { code, details } = error as Partial<StageError>;
  if (details?.["needed"] !== undefined) return error;
  if (!["E_SPACE", "ENOSPC", "EDQUOT"].includes(String(code))) return error;
  const available = await availableBytes(dir);
  return new StageError(
    "E_SPACE",
    `the disk of ${dir} is full: about ${needed} bytes were needed from here, ${available} are free`,
    {
      hint: "free some space and run the same command again; what is written so far is kept",
      details: { needed, available, path: dir },
      cause: error,
    },
  );
}
