import { generateKeyPairSync, sign } from "node:crypto";

// DER (ITU-T X.690), the little of it that a certificate needs.
const tlv = (tag: number, ...parts: Uint8Array[]): Buffer => {
  const body = Buffer.concat(parts);
  const bytes = body.length < 128 ? [body.length] : [0x82, body.length >> 8, body.length & 255];
  return Buffer.concat([Buffer.from([tag, ...bytes]), body]);
};
const sequence = (...parts: Uint8Array[]) => tlv(0x30, ...parts);
const set = (...parts: Uint8Array[]) => tlv(0x31, ...parts);
const oid = (hex: string) => tlv(0x06, Buffer.from(hex, "hex"));
const integer = (value: number) => tlv(0x02, Buffer.from([value]));
const utcTime = (text: string) => tlv(0x17, Buffer.from(text, "latin1"));
const bitString = (bytes: Uint8Array) => tlv(0x03, Buffer.from([0]), bytes);
const octetString = (bytes: Uint8Array) => tlv(0x04, bytes);

const ECDSA_WITH_SHA256 = sequence(oid("2a8648ce3d040302"));
const COMMON_NAME = "550403";
const SUBJECT_ALT_NAME = "551d11";
const BASIC_CONSTRAINTS = "551d13";

/**
 * A fresh key and a self-signed certificate (RFC 5280) for the loopback hosts (addresses or names), as PEM. Clients trust it by taking
 * `cert` as their CA (`NODE_EXTRA_CA_CERTS`, or a connector's `ca` option).
 */
export function loopbackCertificate(hosts: readonly string[] = ["127.0.0.1", "127.0.0.2"]): {
  key: string;
  cert: string;
} {
  const { privateKey, publicKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  const name = sequence(set(sequence(oid(COMMON_NAME), tlv(0x0c, Buffer.from("k3 loopback hub")))));
  const addresses = hosts.map((host) =>
    /^[\d.]+$/.test(host)
      ? tlv(0x87, Buffer.from(host.split(".").map(Number)))
      : tlv(0x82, Buffer.from(host, "latin1")),
  );
  const extensions = sequence(
    sequence(oid(BASIC_CONSTRAINTS), octetString(sequence(tlv(0x01, Buffer.from([0xff]))))),
    sequence(oid(SUBJECT_ALT_NAME), octetString(sequence(...addresses))),
  );
  const content = sequence(
    tlv(0xa0, integer(2)),
    integer(1),
    ECDSA_WITH_SHA256,
    name,
    sequence(utcTime("200101000000Z"), utcTime("491231235959Z")),
    name,
    publicKey.export({ type: "spki", format: "der" }),
    tlv(0xa3, extensions),
  );
  const certificate = sequence(content, ECDSA_WITH_SHA256, bitString(sign("sha256", content, privateKey)));
  const lines = certificate.toString("base64").match(/.{1,64}/g)!;
  return {
    key: privateKey.export({ type: "pkcs8", format: "pem" }) as string,
    cert: ["-----BEGIN CERTIFICATE-----", ...lines, "-----END CERTIFICATE-----", ""].join("\n"),
  };
}
