import { StageError, toStageError } from "@k3/stage";

/** An error of the addon as the StageError that it names. */
function stageError(error: unknown): StageError {
  const { code, hint } = error as { code?: string; hint?: string };
  if (error instanceof Error && typeof code === "string" && code.startsWith("E_")) {
    const options = { cause: error, ...(hint === undefined ? {} : { hint }) };
    return new StageError(code as StageError["code"], error.message, options);
  }
  return toStageError(error);
}

/** Calls the addon; what it throws becomes the StageError that it names. */
export function fromNative<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    throw stageError(error);
  }
}

/** The same for a promise of the addon. */
export async function native<T>(promise: Promise<T>): Promise<T> {
  try {
    return await promise;
  } catch (error) {
    throw stageError(error);
  }
}
