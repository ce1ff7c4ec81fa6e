import { X509Certificate } from "node:crypto";
import { get } from "node:https";
import { expect, test } from "vitest";
import { loopbackCertificate, startHub, syntheticFile } from "../src/index.ts";

function locationOf(url: string, ca: string): Promise<string> {
  return new Promise((resolve, reject) => {
    get(url, { ca, agent: false }, (response) => {
      response.resume();
      resolve(response.headers.location ?? "");
    }).on("error", reject);
  });
}

test("the certificate is for the loopback hosts and signed by its own key", () => {
  const certificate = new X509Certificate(loopbackCertificate().cert);
  expect(certificate.verify(certificate.publicKey)).toBe(true);
  expect(certificate.subjectAltName).toBe("IP Address:127.0.0.1, IP Address:127.0.0.2");
});

test("a TLS Hub is trusted by its certificate, and downgradeHttp points away from TLS", async () => {
  const tls = loopbackCertificate();
  const hub = await startHub({ repositories: [{ name: "a/b", files: [syntheticFile("x.bin", 10)] }], tls });
  try {
    const url = `${hub.endpoint}/a/b/resolve/main/x.bin`;
    expect(url.startsWith("https://127.0.0.1:")).toBe(true);
    expect((await locationOf(url, tls.cert)).startsWith(hub.cdn)).toBe(true);
    hub.setFaults({ downgradeHttp: 1 });
    expect((await locationOf(url, tls.cert)).startsWith("http://127.0.0.2:")).toBe(true);
    await expect(locationOf(url, loopbackCertificate().cert)).rejects.toThrow();
  } finally {
    await hub.close();
  }
});
