// XXH3, 64 bits, seed 0, of up to 240 bytes: the hash that divides keys into groups. https://github.com/Cyan4973/xxHash

const SECRET = Buffer.from(
  "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221" +
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8" +
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb" +
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e",
  "hex",
);
const P1 = 0x9e3779b185ebca87n;
const P2 = 0xc2b2ae3d27d4eb4fn;
const P3 = 0x165667b19e3779f9n;
const MX1 = 0x165667919e3779f9n;
const MX2 = 0x9fb21c651e98df25n;

const u64 = (number) => BigInt.asUintN(64, number);
const mul = (a, b) => u64(a * b);
const rotl = (a, by) => u64((a << by) | (a >> (64n - by)));
const secret = (at) => SECRET.readBigUInt64LE(at);
const folded = (a, b) => u64(a * b) ^ ((a * b) >> 64n);

function avalanche(hash) {
  const mixed = mul(hash ^ (hash >> 37n), MX1);
  return mixed ^ (mixed >> 32n);
}

function avalancheOfShort(hash) {
  let mixed = mul(hash ^ (hash >> 33n), P2);
  mixed = mul(mixed ^ (mixed >> 29n), P3);
  return mixed ^ (mixed >> 32n);
}

/** @param {Uint8Array} bytes @returns {bigint} */
export function xxh3(bytes) {
  const data = Buffer.from(bytes);
  const length = data.length;
  const n = BigInt(length);
  const u32 = (at) => BigInt(data.readUInt32LE(at));
  const word = (at) => data.readBigUInt64LE(at);
  const mix = (at, by) => folded(word(at) ^ secret(by), word(at + 8) ^ secret(by + 8));
  if (length === 0) return avalancheOfShort(secret(56) ^ secret(64));
  if (length <= 3) {
    const combined = (data[0] << 16) | (data[length >> 1] << 24) | data[length - 1] | (length << 8);
    const flip = BigInt(SECRET.readUInt32LE(0)) ^ BigInt(SECRET.readUInt32LE(4));
    return avalancheOfShort(BigInt(combined >>> 0) ^ flip);
  }
  if (length <= 8) {
    let hash = (u32(length - 4) + (u32(0) << 32n)) ^ secret(8) ^ secret(16);
    hash = mul(hash ^ rotl(hash, 49n) ^ rotl(hash, 24n), MX2);
    hash = mul(hash ^ ((hash >> 35n) + n), MX2);
    return hash ^ (hash >> 28n);
  }
  if (length <= 16) {
    const low = word(0) ^ secret(24) ^ secret(32);
    const high = word(length - 8) ^ secret(40) ^ secret(48);
    const swapped = Buffer.alloc(8);
    swapped.writeBigUInt64BE(low);
    return avalanche(u64(n + swapped.readBigUInt64LE() + high + folded(low, high)));
  }
  let sum = n * P1;
  if (length <= 128) {
    for (let i = (length - 1) >> 5; i >= 0; i--) sum += mix(16 * i, 32 * i) + mix(length - 16 * (i + 1), 32 * i + 16);
    return avalanche(u64(sum));
  }
  if (length > 240) throw new RangeError(`expected a key of at most 240 bytes, got ${length}: use a library of XXH3`);
  for (let i = 0; i < 8; i++) sum += mix(16 * i, 16 * i);
  sum = avalanche(u64(sum)) + mix(length - 16, 119);
  for (let i = 8; i < length >> 4; i++) sum += mix(16 * i, 16 * (i - 8) + 3);
  return avalanche(u64(sum));
}
