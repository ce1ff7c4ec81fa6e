/** What `doctor` found: fine, worth knowing, or in the way. */
export interface Finding {
  level: "ok" | "warn" | "error";
  message: string;
  hint?: string;
}
