// The checks of scripts/supply-chain.mjs have to be able to fail.
import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { closure } from "../../../scripts/sbom.mjs";
import { dependencyComplaints, workflowComplaints } from "../../../scripts/supply-chain.mjs";

const SHA = "11bd71901bbe5b1630ceea73d27597364c9af683";
const workflow = (change: (text: string) => string = (text) => text) =>
  change(`on: push
permissions:
  contents: read
jobs:
  test:
    timeout-minutes: 5
    steps:
      - uses: actions/checkout@${SHA} # v4.2.2
        with:
          persist-credentials: false
      - run: pnpm test
`);

describe("workflows", () => {
  it("of the repository have nothing to complain about", () => {
    for (const file of ["ci.yml", "nightly.yml", "release.yml"]) {
      const text = readFileSync(new URL(`../../../.github/workflows/${file}`, import.meta.url), "utf8");
      expect(workflowComplaints(file, text)).toEqual([]);
    }
  });

  it.each<[string, (text: string) => string, RegExp]>([
    [
      "a tag instead of a commit",
      (text) => text.replace(`${SHA} # v4.2.2`, "v4"),
      /actions\/checkout@v4 is not pinned/,
    ],
    [
      "a commit without its version",
      (text) => text.replace(" # v4.2.2", ""),
      /is not pinned to a commit with its version/,
    ],
    ["a short commit", (text) => text.replace(SHA, SHA.slice(0, 12)), /is not pinned/],
    [
      "no permissions",
      (text) => text.replace("permissions:\n  contents: read\n", ""),
      /the top needs permissions/,
    ],
    [
      "write for all",
      (text) => text.replace("contents: read", "contents: write"),
      /the top needs permissions/,
    ],
    [
      "write for a job",
      (text) => text.replace("  test:\n", "  test:\n    permissions:\n      packages: write\n"),
      /job test may write packages/,
    ],
    [
      "pull_request_target",
      (text) => text.replace("on: push", "on: pull_request_target"),
      /others' code with our rights/,
    ],
    [
      "a token left behind",
      (text) => text.replace("credentials: false", "credentials: true"),
      /leaves its token/,
    ],
    [
      "text of an event in a script",
      // biome-ignore lint/suspicious/noTemplateCurlyInString: an expression of GitHub's
      (text) => text.replace("pnpm test", 'echo "${{ github.event.pull_request.title }}"'),
      /pastes text of the event/,
    ],
    [
      "an install that may change the lockfile",
      (text) => text.replace("pnpm test", "pnpm install && pnpm test"),
      /installs what no lockfile names: pnpm install/,
    ],
    [
      "a package from outside of the lockfile",
      (text) => text.replace("pnpm test", "npx --yes something"),
      /installs what no lockfile names/,
    ],
    ["no time limit", (text) => text.replace("    timeout-minutes: 5\n", ""), /no timeout-minutes/],
  ])("%s is noticed", (_name, change, message) => {
    expect(workflowComplaints("ci.yml", workflow())).toEqual([]);
    expect(workflowComplaints("ci.yml", workflow(change)).join("\n")).toMatch(message);
  });
});

describe("the page of dependencies", () => {
  const page = "| `zod` | all | checks | by hand |\n| `yaml` | root | reads | other |\n";

  it("has a line for each, with all its cells, and no other", () => {
    const ours = {
      name: "@k3/a",
      dependencies: { "@k3/b": "workspace:*", zod: "1" },
      devDependencies: { yaml: "1" },
    };
    const other = { name: "@k3/b" };
    expect(dependencyComplaints(page, [ours, other])).toEqual([]);
    expect(dependencyComplaints(page, [{ ...ours, optionalDependencies: { left: "1" } }, other])).toEqual([
      "docs/dependencies.md: no line for left",
    ]);
    expect(dependencyComplaints(page, [{ name: "@k3/a", dependencies: { zod: "1" } }])).toEqual([
      "docs/dependencies.md: yaml is no dependency any more",
    ]);
    expect(dependencyComplaints(page.replace("by hand", ""), [ours, other])).toEqual([
      "docs/dependencies.md: zod has an empty cell",
    ]);
  });
});

describe("the closure of a lockfile", () => {
  const integrity = "sha512-AAAA";
  const lock = {
    lockfileVersion: "9.0",
    importers: {
      "packages/a": {
        dependencies: { "@x/one": { version: "1.0.0(peer@2.0.0)" }, "@k3/b": { version: "link:../b" } },
        devDependencies: { never: { version: "1.0.0" } },
      },
      "packages/b": { optionalDependencies: { two: { version: "2.0.0" } } },
    },
    packages: {
      "@x/one@1.0.0": { resolution: { integrity } },
      "two@2.0.0": { resolution: { integrity } },
      "three@3.0.0": { resolution: { integrity } },
    },
    snapshots: {
      "@x/one@1.0.0(peer@2.0.0)": { dependencies: { three: "3.0.0" } },
      "two@2.0.0": { optionalDependencies: { three: "3.0.0" } },
      "three@3.0.0": { dependencies: { two: "2.0.0" } },
    },
  };
  const manifests = {
    "packages/a": { name: "@k3/a", version: "0.1.0" },
    "packages/b": { name: "@k3/b", version: "0.2.0" },
  };

  it("is what is installed at run time, with peers, circles and links, and without what is only for development", () => {
    const { components, edges } = closure(lock, manifests);
    expect([...components.keys()].sort()).toEqual([
      "pkg:npm/%40x/one@1.0.0",
      "pkg:npm/three@3.0.0",
      "pkg:npm/two@2.0.0",
    ]);
    expect([...edges.get("pkg:npm/%40k3/a@0.1.0")!]).toEqual([
      "pkg:npm/%40x/one@1.0.0",
      "pkg:npm/%40k3/b@0.2.0",
    ]);
    expect([...edges.get("pkg:npm/two@2.0.0")!]).toEqual(["pkg:npm/three@3.0.0"]);
  });

  it("refuses another version of the format, and a package without a hash", () => {
    expect(() => closure({ ...lock, lockfileVersion: "6.0" }, manifests)).toThrow(
      "lockfile version 6.0 is not 9",
    );
    expect(() => closure({ ...lock, packages: {} }, manifests)).toThrow("no integrity");
  });
});
