import { checkStructure } from "@k3/checkpoint";
import {
  type HashRecord,
  Meter,
  type Receipt,
  readReceipt,
  type SnapshotFile,
  StageError,
  throwIfAborted,
  writeReceipt,
} from "@k3/stage";
import { locateDamage, located } from "./damage.ts";
import type { Expected } from "./expected.ts";
import { findExtras } from "./extras.ts";
import { HashJournal } from "./hash-journal.ts";
import { hashSmall } from "./hash-small.ts";
import { hashFiles, readDirectly } from "./hashes.ts";
import { withHint } from "./hints.ts";
import { receiptOf } from "./receipts.ts";
import { checkSize } from "./sizes.ts";
import type { VerifyFault, VerifyOptions } from "./types.ts";

/** One verification: its levels, and what they found. */
export class VerifyRun {
  readonly faults: VerifyFault[] = [];
  extra: string[] = [];
  checked = 0;
  bytes = 0;
  bytesRead = 0;
  direct = false;
  fromJournal = 0;
  readonly #options: VerifyOptions;
  readonly #expected: Expected | undefined;
  /** Paths whose size is wrong, or which are not there. */
  readonly #absent = new Set<string>();

  constructor(options: VerifyOptions, expected: Expected | undefined) {
    this.#options = options;
    this.#expected = expected;
  }

  async sizes({ files, selected }: Expected): Promise<void> {
    const { dir, failOnExtra, signal, onEvent } = this.#options;
    const meter = new Meter({
      stage: "verify",
      phase: "comparing sizes",
      unit: "files",
      total: selected.length,
      onEvent,
    });
    for (const file of selected) {
      throwIfAborted(signal);
      const fault = await checkSize(dir, file);
      if (fault) {
        this.#absent.add(file.path);
        this.#fault(fault);
      }
      this.checked++;
      this.bytes += file.size;
      meter.add(1);
    }
    meter.emit();
    this.extra = await findExtras(dir, files);
    if (this.extra.length === 0) return;
    if (failOnExtra) {
      for (const path of this.extra) {
        this.#fault({
          path,
          kind: "extra-file",
          expected: "only files of the repository",
          found: "a file that it does not have",
        });
      }
    } else {
      const named = this.extra.slice(0, 5).join(", ");
      this.#log(
        "warn",
        `${this.extra.length} files are not of the repository: ${named}${this.extra.length > 5 ? ", ..." : ""}`,
      );
    }
  }

  /** The structure of a directory with a listing: a config.json with wrong content is a fault, not a refused config. */
  async listedStructure({ selected }: Expected): Promise<void> {
    const config = selected.find(({ path }) => path === "config.json");
    const there = config && !this.#absent.has(config.path);
    const fault = there ? await hashSmall(this.#options.dir, config) : undefined;
    if (fault) this.#fault(fault);
    else await this.structure(true);
  }

  /** With `listed`, files that are missing or too short are known already, and config.json may be one of them. */
  async structure(listed: boolean): Promise<void> {
    const { dir, signal, onEvent } = this.#options;
    if (this.#absent.has("config.json")) {
      this.#log("warn", "the structure cannot be checked without config.json");
      return;
    }
    const { faults, shards, bytes } = await checkStructure(dir, { signal, onEvent });
    if (!listed) {
      this.checked = shards;
      this.bytes = bytes;
    }
    const partial = !this.complete;
    if (partial)
      this.#log(
        "info",
        "only some of the weight files were asked for: tensors of the others are not looked for",
      );
    const lacksWeights = [...this.#absent].some((path) => path.endsWith(".safetensors"));
    for (const fault of faults) {
      // What follows from a file that is reported as missing or of another size is not a fault of its own.
      if (this.#absent.has(fault.path)) continue;
      if (fault.kind === "missing" && (partial || lacksWeights)) continue;
      if (fault.kind === "no-shards" && partial) continue;
      this.#fault(fault);
    }
  }

  async hashes(expected: Expected, jobs: number): Promise<void> {
    const { dir, recheck = false, sinceReceipt = false, signal, onEvent } = this.#options;
    const journal = await HashJournal.open(dir, expected.key);
    try {
      const receipt = await this.#receipt(expected, sinceReceipt);
      if (journal.readOnly)
        this.#log("warn", `${dir} cannot be written to: the hashes found now are not kept`);
      const files = expected.selected.filter(({ path }) => !this.#absent.has(path));
      const before = new Map<string, HashRecord>();
      for (const { path } of files) {
        const record = journal.last(path);
        if (record) before.set(path, record);
      }
      const options = { dir, journal, jobs, recheck: recheck || sinceReceipt, signal, onEvent };
      // config.json first: whether it is as published decides whose fault a refused config is.
      const isConfig = ({ path }: SnapshotFile) => path === "config.json";
      const first = await hashFiles(files.filter(isConfig), { ...options, onEvent: undefined });
      const config = first.proofs[0];
      if (config && !config.fault) await this.structure(true);
      else if (config)
        this.#log("warn", "the structure cannot be checked: config.json is not the published one");
      else await this.structure(true);
      const rest = await hashFiles(
        files.filter((file) => !isConfig(file)),
        options,
      );
      const proofs = [...first.proofs, ...rest.proofs];
      this.bytesRead = first.bytesRead + rest.bytesRead;
      this.direct = readDirectly(proofs);
      this.fromJournal = first.fromJournal + rest.fromJournal;
      const damaged: Receipt["damaged"] = [];
      for (const proof of proofs) {
        if (!proof.fault) continue;
        this.#fault(
          proof.record ? located(proof, locateDamage(proof, { receipt, before }), damaged) : proof.fault,
        );
      }
      if (!journal.readOnly && (this.faults.length === 0 || damaged.length > 0)) {
        await writeReceipt(dir, receiptOf({ expected, receipt, proofs, damaged, before }));
      }
    } finally {
      await journal.close();
    }
  }

  /** The receipt, if it is of this commit. */
  async #receipt(expected: Expected, needed: boolean): Promise<Receipt | undefined> {
    const { dir } = this.#options;
    const receipt = await readReceipt(dir);
    if (receipt && receipt.revision === expected.revision) return receipt;
    if (!needed) return undefined;
    throw new StageError(
      "E_USAGE",
      receipt
        ? `the receipt in ${dir} is of commit ${receipt.revision}, not of ${expected.revision}`
        : `${dir} has no receipt: it was never verified to the end`,
      { hint: `k3 verify ${dir}` },
    );
  }

  /** Whether the directory was asked to hold all of the repository's weight files. */
  get complete(): boolean {
    if (!this.#expected) return true;
    const { files, selected } = this.#expected;
    const weights = (list: readonly SnapshotFile[]) =>
      list.filter(({ path }) => path.endsWith(".safetensors")).length;
    return weights(selected) === weights(files);
  }

  #fault(fault: VerifyFault): void {
    this.faults.push(withHint(fault, this.#options.dir, this.#expected));
    const { path, kind, tensor, expected, found } = fault;
    this.#log("error", `${path}: ${kind}${tensor ? ` ${tensor}` : ""}: expected ${expected}, found ${found}`);
  }

  #log(level: "info" | "warn" | "error", message: string): void {
    this.#options.onEvent?.({ type: "log", level, stage: "verify", message });
  }
}
