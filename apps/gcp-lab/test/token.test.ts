import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Machine, noMachine } from "./support/machine.ts";
import { PLAN } from "./support/terraform.ts";

const TOKEN = "hf_onlyInMemory0123456789";
const helper = join(PLAN, "bootstrap/k3-token");

describe.skipIf(noMachine)(`k3-token${noMachine ? ` (skipped: ${noMachine})` : ""}`, () => {
  let machine: Machine;
  beforeEach(() => {
    machine = new Machine({ metadata: "", mirror: "", registry: "" });
  });
  afterEach(() => machine.close());

  it("keeps a token from standard input in memory, readable by the pipeline's user only, and restarts the pipeline", async () => {
    const file = `${machine.root}/run/k3/hf-token`;
    // printf is built into bash: the test does not put the token into arguments either.
    const { code, output } = await machine.run(
      `printf '%s\\n' "$T" | bash ${helper} && stat -c '%a %U %F' ${file} && stat -f -c %T ${file} && [[ $(<${file}) == "$T" ]] && echo same`,
      { T: TOKEN },
    );
    expect(output).toBe("k3-token: kept in memory until the next boot\n400 root regular file\ntmpfs\nsame\n");
    expect(code).toBe(0);
    expect(readFileSync(machine.systemctlLog, "utf8")).toBe("try-restart k3-pipeline.service\n");
    // The namespace is gone, and with it the memory; nothing is left in any file of the machine.
    expect(existsSync(file)).toBe(false);
    expect(() => execFileSync("grep", ["-r", TOKEN, machine.folder])).toThrow();
  });

  it("forgets it", async () => {
    const { output } = await machine.run(
      `printf '%s\\n' "$T" | bash ${helper} && bash ${helper} --clear && ls ${machine.root}/run/k3 | wc -l`,
      { T: TOKEN },
    );
    expect(output).toMatch(/forgotten; .*\n0\n$/);
  });

  it("takes no token as an argument and does not repeat it", async () => {
    const { code, output } = await machine.run(`bash ${helper} "$T"; exit $?`, { T: TOKEN });
    expect(code).toBe(2);
    expect(output).not.toContain(TOKEN);
  });

  it.each(["", "two words", "hf_short'; reboot"])(
    "refuses %j as a token, without repeating it",
    async (wrong) => {
      const { code, output } = await machine.run(`printf '%s\\n' "$T" | bash ${helper}; exit $?`, {
        T: wrong,
      });
      expect(code).toBe(2);
      expect(output).toBe("k3-token: that is no token: 8 to 256 letters, digits, _ and - on one line\n");
    },
  );

  it("refuses while memory may be swapped to a disk", async () => {
    machine.command("swapon", "echo /swapfile");
    const { code, output } = await machine.run(
      `printf '%s\\n' "$T" | bash ${helper}; status=$?; ls ${machine.root}/run/k3; exit $status`,
      { T: TOKEN },
    );
    expect(output).toMatch(/^k3-token: swap is on: .*\n$/);
    expect(code).toBe(2);
  });

  it("refuses a directory that is not in memory", async () => {
    const { code, output } = await machine.run(
      `umount ${machine.root}/run && printf '%s\\n' "$T" | bash ${helper}; exit $?`,
      { T: TOKEN },
    );
    expect(output).toContain("not in memory");
    expect(code).toBe(2);
    expect(existsSync(join(machine.root, "run/k3/hf-token"))).toBe(false);
  });
});
