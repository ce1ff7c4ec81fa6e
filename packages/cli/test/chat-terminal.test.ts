// A person's session, on a real pseudo-terminal.

import { title } from "@k3/testkit";
import { describe, expect, test } from "vitest";
import { Pty, SMALL, script, workplace } from "./chat-fixture.ts";

const need = script.skip === undefined ? [] : [{ path: undefined, skip: script.skip } as const];

describe.skipIf(script.skip !== undefined)(title("k3 chat on a terminal", ...need), () => {
  const work = workplace();
  const pty = (...argv: string[]) => new Pty(["chat", work.model, ...SMALL, ...argv]);

  test("lines are edited, thinking is dim and apart, history comes back, commands work", async () => {
    const session = pty();
    try {
      await session.until("/help says what can be typed.");
      await session.until("> ");
      await session.type("Hell!", "\x1b[D", "o", "\r");
      await session.until("\x1b[2mThe");
      await session.until(/hello.*\x1b\[22m[\r\n]+Hello/s);
      await session.until("(read 87 tokens");
      await session.until("> ");
      await session.type("\x1b[A");
      await session.until("Hello!");
      await session.type("\x15", "What is the capital of France?", "\r");
      await session.until("Paris");
      await session.until("(read 29 tokens");
      await session.until("> ");
      await session.type("/nope", "\r");
      await session.until("/nope is no command");
      await session.until("> ");
      await session.type("/reset", "\r");
      await session.until("Everything is forgotten.");
      await session.until("> ");
      await session.type("Hello!", "\r");
      await session.until("(read 87 tokens");
      await session.until("> ");
      await session.type("/exit", "\r");
      expect(await session.exited).toBe(0);
    } finally {
      session.kill();
    }
  });

  test("Ctrl-C stops the turn and leaves the session; at the prompt it ends it", async () => {
    // One token a pass, and many of them: time enough to stop it.
    const session = pty("--system", "word ".repeat(1500), "--chunk", "1", "--generate", "4");
    try {
      await session.until("> ");
      await session.type("Hello!", "\r");
      await session.until("reading");
      await session.type("\x03");
      await session.until("stopping after this token");
      await session.until("Stopped; /continue goes on with it.");
      await session.until("> ");
      await session.type("/continue", "\r");
      await session.until("reading");
      await session.type("\x03", "\x03");
      await session.until("Stopped; /continue goes on with it.");
      await session.until("> ");
      await session.type("\x03");
      expect(await session.exited).toBe(0);
    } finally {
      session.kill();
    }
  });

  test("Ctrl-D ends it, pasted lines are one message, a kept conversation is gone on with", async () => {
    const dir = work.place();
    const first = pty("--conversation", dir);
    try {
      await first.until("> ");
      await first.type("Hello!\rHello!\r");
      await first.until("(read");
      await first.until("> ");
      await first.type("\x04");
      expect(await first.exited).toBe(0);
    } finally {
      first.kill();
    }
    const second = pty("--conversation", dir);
    try {
      await second.until("Going on after 1 turn.");
      await second.until("> ");
      await second.type("\x04");
      expect(await second.exited).toBe(0);
    } finally {
      second.kill();
    }
  });
});
