import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inspect } from "node:util";
import { StageError } from "@k3/stage";
import fc from "fast-check";
import { describe, expect, it, onTestFinished } from "vitest";
import { backoffMs, hopelessNetworkError } from "../src/backoff.ts";
import { findToken, redact, redactError } from "../src/token.ts";

describe("tokens and what is said", () => {
  it("are found in the order of hub.md 2.1", async () => {
    expect(await findToken("flag", { HF_TOKEN: "env" })).toBe("flag");
    expect(await findToken("", { HF_TOKEN: "env" })).toBeUndefined();
    expect(await findToken(undefined, { HF_TOKEN: " env\r\n", HUGGING_FACE_HUB_TOKEN: "old" })).toBe("env");
    expect(await findToken(undefined, { HUGGING_FACE_HUB_TOKEN: "old", HF_HOME: "/nowhere" })).toBe("old");
    expect(
      await findToken(undefined, { HF_TOKEN: "env", HF_HUB_DISABLE_IMPLICIT_TOKEN: "1" }),
    ).toBeUndefined();
    expect(await findToken(undefined, { HOME: "/nowhere" })).toBeUndefined();
    await expect(findToken("two words")).rejects.toMatchObject({
      code: "E_USAGE",
      message: expect.not.stringContaining("two"),
    });
    const home = await mkdtemp(join(tmpdir(), "k3-hub-"));
    onTestFinished(() => rm(home, { recursive: true }));
    await writeFile(join(home, "token"), "from-file\r\n");
    expect(await findToken(undefined, { HF_HOME: home })).toBe("from-file");
    expect(await findToken(undefined, { HF_HOME: "/x", HF_TOKEN_PATH: join(home, "token") })).toBe(
      "from-file",
    );
    expect(await findToken(undefined, { HF_TOKEN_PATH: join(home, "nothing") })).toBeUndefined();
  });

  it("no text keeps a token or the query of a URL", () => {
    const token = fc.stringMatching(/^hf_[A-Za-z0-9]{20,34}$/);
    fc.assert(
      fc.property(token, fc.string(), fc.string(), (secret, before, after) => {
        expect(redact(`${before}${secret}${after}`, secret)).not.toContain(secret);
        expect(redact(`x Bearer ${secret} https://h/p?X-Amz-Signature=${secret}`, undefined)).not.toContain(
          secret,
        );
      }),
    );
  });

  it("no error keeps them either, in no part of it that anyone prints", () => {
    const secret = "hf_SecretTokenThatMustNotLeak0123456789";
    const url = "https://cdn.test/f?X-Amz-Signature=0a1b2c";
    const inner = Object.assign(new Error(`connect ${url}`), {
      code: "ECONNRESET",
      socket: { auth: secret },
    });
    const error = new StageError("E_HUB", `answered ${secret}`, {
      hint: `ask ${url}`,
      details: { body: secret, tries: 3, urls: [{ url }] },
      cause: new TypeError(`fetch failed: Bearer ${secret}`, { cause: inner }),
    });
    const clean = redactError(error, secret);
    // As `--debug` and JSON show an error.
    const shown = `${inspect(clean, { depth: 20, showHidden: true })} ${JSON.stringify({ ...clean })}`;
    expect(shown).not.toMatch(/SecretToken|0a1b2c/);
    expect(clean).toMatchObject({
      code: "E_HUB",
      exit: 6,
      message: "answered [token]",
      hint: "ask https://cdn.test/f?...",
      details: { body: "[token]", tries: 3, urls: [{ url: "https://cdn.test/f?..." }] },
      cause: { name: "TypeError", cause: { code: "ECONNRESET", message: "connect https://cdn.test/f?..." } },
    });
    expect(clean.stack).toContain(import.meta.filename);
  });

  it("a number in a text does not make a failure hopeless", () => {
    for (const text of ["stalled: 407 bytes in 30 s", "the body ended 407 bytes early"])
      expect(hopelessNetworkError(new Error(text), "host")).toBeUndefined();
    const proxy = new Error("Proxy response (407) !== 200 when HTTP Tunneling");
    expect(hopelessNetworkError(new Error("fetch failed", { cause: proxy }), "host")?.message).toMatch(
      /asks for authentication/,
    );
  });

  it("back-off stays within base x 2^attempt and the cap", () => {
    fc.assert(
      fc.property(
        fc.nat(100),
        fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
        (attempt, at) => {
          const ms = backoffMs(attempt, 1000, 60_000, () => at);
          expect(ms).toBeGreaterThanOrEqual(0);
          expect(ms).toBeLessThanOrEqual(Math.min(60_000, 1000 * 2 ** Math.min(attempt, 30)));
        },
      ),
    );
  });
});
