// Finds the row of a key in the table: broadsheet.v1.KeyTable as JSON.
import { xxh3 } from "./xxh3.mjs";

const utf8 = new TextEncoder();

export function fnv1a(bytes) {
  let hash = 0x811c9dc5;
  for (const byte of bytes) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/** The bytes of a key of one text in keyed state: 01, the text with 00 FF for each 00, 00 00. */
export function stateKey(text) {
  return Uint8Array.from([1, ...[...utf8.encode(text)].flatMap((byte) => (byte ? [byte] : [0, 255])), 0, 0]);
}

/** The row of the table that has a key. */
export function rangeOf(table, key) {
  const hash = fnv1a(utf8.encode(key));
  let journal = 0;
  if (table.rule === "KEY_RULE_MODULO") journal = hash % table.journals.length;
  if (table.rule === "KEY_RULE_RENDEZVOUS") {
    const scores = table.journals.map((name) => (hash ^ fnv1a(utf8.encode(name))) >>> 0);
    journal = scores.indexOf(scores.reduce((one, other) => Math.max(one, other)));
  }
  const ranges = table.ranges.filter((range) => range.journal === journal);
  if (ranges.length === 1) return ranges[0];
  const group = Number(xxh3(stateKey(key)) % BigInt(table.groups));
  return ranges.find((range) => range.begin <= group && group < range.end);
}
