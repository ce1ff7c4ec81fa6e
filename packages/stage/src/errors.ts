/** Exit codes of every k3 command; libraries carry the same number on their errors. */
export const EXIT = {
  ok: 0,
  defect: 1,
  usage: 2,
  data: 3,
  read: 4,
  resources: 5,
  network: 6,
  locked: 7,
  interrupted: 130,
} as const;

export type ExitCode = (typeof EXIT)[keyof typeof EXIT];

const EXIT_OF_CODE = {
  /** A defect of ours: an invariant of the program does not hold. */
  E_DEFECT: EXIT.defect,
  /** An argument, or a combination of arguments, that cannot be used. */
  E_USAGE: EXIT.usage,
  /** A config or file that is well readable but refused. */
  E_CONFIG: EXIT.usage,
  /** Data on disk is wrong, missing, or changed since it was recorded. */
  E_DATA: EXIT.data,
  /** A weight could not be read while the model ran, or the disk failed in another stage. */
  E_READ: EXIT.read,
  /** Not enough disk space. */
  E_SPACE: EXIT.resources,
  /** Not enough memory. */
  E_MEMORY: EXIT.resources,
  /** The network failed after all retries. */
  E_NETWORK: EXIT.network,
  /** The Hub refused the request (401, 403, 404) or broke its protocol. */
  E_HUB: EXIT.network,
  /** Another process holds the directory. */
  E_LOCKED: EXIT.locked,
  /** Stopped by a signal or an AbortSignal; the same call resumes. */
  E_INTERRUPTED: EXIT.interrupted,
} as const satisfies Record<string, ExitCode>;

export type ErrorCode = keyof typeof EXIT_OF_CODE;

export interface StageErrorOptions {
  /** What the user can do next, as one sentence or command. */
  hint?: string;
  /** Machine-readable facts: both numbers of a refused budget, the paths of faults. */
  details?: Record<string, unknown>;
  cause?: unknown;
}

/** The one error type that stages throw on purpose: what went wrong, where, and what to do. */
export class StageError extends Error {
  override readonly name = "StageError";
  readonly code: ErrorCode;
  readonly exit: ExitCode;
  readonly hint: string | undefined;
  readonly details: Record<string, unknown> | undefined;

  constructor(code: ErrorCode, message: string, options: StageErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.exit = EXIT_OF_CODE[code];
    this.hint = options.hint;
    this.details = options.details;
  }
}

/** Turns anything thrown into a StageError: aborts, full disks and unreadable files keep their meaning. */
export function toStageError(error: unknown): StageError {
  if (error instanceof StageError) return error;
  if (!(error instanceof Error)) return new StageError("E_DEFECT", String(error), { cause: error });
  if (error.name === "AbortError") {
    return new StageError("E_INTERRUPTED", "interrupted", {
      hint: "run the same command again to continue",
      cause: error,
    });
  }
  const { code, path, syscall } = error as NodeJS.ErrnoException;
  if (code === "ENOSPC" || code === "EDQUOT") {
    return new StageError("E_SPACE", `no space left on the disk${path ? ` of ${path}` : ""}`, {
      hint: "free some space and run the same command again; what is written so far is kept",
      cause: error,
    });
  }
  if (code === "ENOENT" || code === "ENOTDIR") {
    return new StageError("E_DATA", `${path ?? error.message}: no such file or directory`, { cause: error });
  }
  if (code === "EACCES" || code === "EPERM" || code === "EROFS" || code === "EISDIR") {
    return new StageError("E_USAGE", path ? `${path}: ${error.message}` : error.message, { cause: error });
  }
  if (code === "EIO") {
    // A disk that takes nothing more is like a full one: what is written so far is kept, and more does not fit.
    const writing = /^(write|f?sync|fdatasync|ftruncate|fallocate|rename)/.test(syscall ?? "");
    const which = writing ? "E_SPACE" : "E_READ";
    return new StageError(which, `${path ? `${path}: ` : ""}the disk failed (${error.message})`, {
      hint: "look at the disk's health (dmesg, smartctl); the same command goes on once it works again",
      cause: error,
    });
  }
  if (code === "EEXIST") {
    return new StageError(
      "E_USAGE",
      `${path ?? error.message}: there is a file in the place of a directory`,
      { cause: error },
    );
  }
  return new StageError("E_DEFECT", error.message, { cause: error });
}

/** Throws E_INTERRUPTED when the signal is aborted; an abort reason that is a StageError is thrown as it is. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (!signal?.aborted) return;
  if (signal.reason instanceof StageError) throw signal.reason;
  throw new StageError("E_INTERRUPTED", "interrupted", {
    hint: "run the same command again to continue",
    cause: signal.reason,
  });
}
