"""Reads a trunk as docs/trunk-format.md describes it and compares it with its checkpoint: reader.py TRUNK_DIR MODEL_DIR"""
import hashlib, json, math, pathlib, struct, sys, zlib

def codes(data, values):
    out = bytearray()
    for g in range(0, -(-values // 64) * 16, 16):
        for shift in (0, 2, 4, 6):
            out += bytes(b >> shift & 3 for b in data[g:g + 16])
    return out[:values]

def expand(data, values, entries, others):
    code, rest = codes(data, values), iter(others)
    assert code.count(3) == len(others)
    return bytes(entries[c] if c < 3 else next(rest) for c in code)

def decode(block, size):
    version, levels, zero, n = struct.unpack_from("<BBHI", block)
    assert (version, levels, zero, n) == (1, 3, 0, size // 2)
    d1, d2, d3 = block[8:11], block[11:14], block[14:17]
    chunks, up = -(-n // 4096), lambda x: -(-x // 64) * 64
    low = 64 + up(8 * (chunks + 1))
    first = low + up(n)
    tails = first + up(n) // 4
    out = bytearray()
    for c in range(chunks):
        here = min(4096, n - 4096 * c)
        begin, n2, n3, end = struct.unpack_from("<IHHI", block, 64 + 8 * c)
        tail, c2, c3 = block[tails + begin:tails + end], up(n2) // 4, up(n3) // 4
        level3 = expand(tail[c2:], n3, d3, tail[c2 + c3:])
        level2 = expand(tail, n2, d2, level3)
        high = expand(block[first + 1024 * c:], here, d1, level2)
        for lo, hi in zip(block[low + 4096 * c:], high):
            value = hi << 8 | lo
            out += (value >> 1 | (value & 1) << 15).to_bytes(2, "little")
    return bytes(out)

trunk, model = map(pathlib.Path, sys.argv[1:3])
m = json.loads((trunk / "trunk.json").read_text())
identity = [m[k] for k in ("format", "version", "codec", "blockBytes", "storedBytes", "rawBytes")]
identity += [m["table"][k] for k in ("offset", "bytes", "blocks", "segments", "crc32")]
identity += [m["source"]["revision"], m["source"]["configSha256"]]
identity += [[[s["file"], s["size"], s["headerSha256"]] for s in m["source"]["shards"]]]
identity += [[[t["name"], t["dtype"], t["shape"], t["layer"]] for t in m["tensors"]]]
text = json.dumps(identity, separators=(",", ":"), ensure_ascii=False)
assert m["id"] == hashlib.sha256(text.encode()).hexdigest()[:16] and m["data"]["file"] == f"trunk-{m['id']}.bin"
data = (trunk / m["data"]["file"]).read_bytes()
table = data[m["table"]["offset"]:][:m["table"]["bytes"]]
assert zlib.crc32(table) == m["table"]["crc32"] and len(data) == m["data"]["bytes"]
found, at, coded = [bytearray() for _ in m["tensors"]], 32 * m["table"]["blocks"], 0
for b in range(m["table"]["blocks"]):
    offset, stored, raw, crc_stored, crc_raw, segments, codec = struct.unpack_from("<QIIIIIB", table, 32 * b)
    block = data[offset:offset + stored]
    assert zlib.crc32(block) == crc_stored and offset % 4096 == 0
    block, coded = (decode(block, raw), coded + 1) if codec else (block, coded)
    assert zlib.crc32(block) == crc_raw and len(block) == raw
    for _ in range(segments):
        t, first_row, rows, start = struct.unpack_from("<4I", table, at)
        tensor, at = m["tensors"][t], at + 16
        matrix = len(tensor["shape"]) >= 2
        row = math.prod(tensor["shape"][matrix:]) * {"BF16": 2, "F32": 4}[tensor["dtype"]]
        assert len(found[t]) == first_row * row
        found[t] += block[start:start + rows * row]
for shard in m["source"]["shards"]:
    raw = (model / shard["file"]).read_bytes()
    length = struct.unpack_from("<Q", raw)[0]
    for name, entry in json.loads(raw[8:8 + length]).items():
        for tensor, content in zip(m["tensors"], found):
            if tensor["name"] == name:
                begin, end = (8 + length + x for x in entry["data_offsets"])
                assert raw[begin:end].startswith(content) and not raw[begin + len(content):end].strip(b"\0"), name
                content[:] = b""
assert not any(found)
print(f"{len(found)} tensors, {m['table']['blocks']} blocks, {coded} of them coded: all as in the checkpoint")
