export type { VerifyFault, VerifyFaultKind, VerifyLevel, VerifyOptions, VerifyResult } from "./types.ts";
export { verify } from "./verify.ts";
