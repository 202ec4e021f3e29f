// What the page knows of the cluster, and what it makes of it. No drawing here.

const HISTORY_SAMPLES = 180;
const MOVES_MAX = 2_000;
/** How long a change is shown as new. */
export const FRESH_MS = 8_000;

/** States of shards, the most urgent first: key, word, and the glyph that the map and the lists draw. */
export const STATES = [
  { key: "failed", word: "failed", glyph: "cross" },
  { key: "unassigned", word: "no replica", glyph: "ring" },
  { key: "cutoff", word: "cut off", glyph: "diamond" },
  { key: "starting", word: "starting", glyph: "triangle" },
  { key: "degraded", word: "standbys missing", glyph: "half" },
  { key: "serving", word: "serving", glyph: "square" },
  { key: "disabled", word: "disabled", glyph: "dash" },
];
export const STATE_BY_KEY = new Map(STATES.map((state, rank) => [state.key, { ...state, rank }]));

/** Glyphs of replicas, for the legend. */
export const REPLICAS = [
  { glyph: "square", tone: "serving", word: "primary, serving" },
  { glyph: "triangle", tone: "starting", word: "primary, starting" },
  { glyph: "diamond", tone: "cutoff", word: "primary, cut off from its broker" },
  { glyph: "disc", tone: "standby", word: "standby, caught up" },
  { glyph: "chevron", tone: "starting", word: "standby, catching up" },
  { glyph: "cross", tone: "failed", word: "failed" },
];

/** Steps of lag that the map draws, bytes: as many marks as steps are reached. */
export const LAG_STEPS = [1 << 16, 1 << 20, 1 << 24, 1 << 28];

export const memberName = (id) => `${id.zone ?? ""}#${id.suffix ?? ""}`;
export const zoneOf = (member) => member.slice(0, member.indexOf("#"));
export const lagStep = (bytes) => LAG_STEPS.filter((step) => bytes >= step).length;

/** URL of a member's page; empty if it has none, or what it announced is no address of the web. */
export function pageOf(member) {
  const url = member?.adminEndpoint ?? "";
  return /^https?:\/\/[^/?#@\s]+$/.test(url) && URL.canParse(url) ? url : "";
}

export class Cluster {
  constructor() {
    this.shards = new Map();
    this.members = new Map();
    this.moves = [];
    this.observer = "";
    this.version = "";
    this.revision = "";
    /** Counted up with each change, for those who keep what they made of it. */
    this.changes = 0;
    /** Replicas whose place or state changed lately: `shard MEMBER` to a time of performance.now(). */
    this.fresh = new Map();
    this.isComplete = false;
    /** Whether the caller's token may change anything. */
    this.mayApply = false;
    /** Progress of replicas, by `SHARD MEMBER`. */
    this.lag = new Map();
    this.totals = new History();
    this.rates = new History();
    this.listeners = new Set();
    this.stale = null;
  }

  changed() {
    this.changes += 1;
    for (const listener of this.listeners) listener();
  }

  /** Apply a WatchShardsResponse; returns whether any replica came, went, or changed its slot. */
  applyPart(part) {
    if (part.reset) this.stale = new Set(this.shards.keys());
    let moved = false;
    for (const listed of part.shards ?? []) {
      const row = rowOf(listed);
      this.stale?.delete(row.id);
      moved = this.#noteChanges(this.shards.get(row.id), row) || moved;
      this.shards.set(row.id, row);
    }
    for (const id of part.removed ?? []) this.#drop(id);
    const header = part.header ?? {};
    if (header.processId) this.observer = memberName(header.processId);
    if (!part.more) {
      for (const id of this.stale ?? []) this.#drop(id);
      this.stale = null;
      this.revision = header.etcd?.revision ?? this.revision;
      this.isComplete = true;
    }
    this.changed();
    return moved;
  }

  #drop(id) {
    for (const { member } of this.shards.get(id)?.replicas ?? []) this.lag.delete(`${id} ${member}`);
    this.shards.delete(id);
  }

  #noteChanges(before, after) {
    // The first table is no news.
    if (!this.isComplete) return false;
    const now = performance.now();
    let moved = false;
    for (const replica of after.replicas) {
      const former = before?.replicas.find((each) => each.member === replica.member);
      const isMoved = !former || former.isPrimary !== replica.isPrimary;
      if (isMoved || former.glyph !== replica.glyph) this.fresh.set(`${after.id} ${replica.member}`, now);
      moved ||= isMoved;
    }
    return moved || (before?.replicas.length ?? 0) > after.replicas.length;
  }

  /** Forget what is no longer new; returns whether anything still is. */
  ageFresh() {
    const oldest = performance.now() - FRESH_MS;
    for (const [key, at] of this.fresh) if (at < oldest) this.fresh.delete(key);
    return this.fresh.size > 0;
  }

  applyMembers(answer) {
    this.members = new Map((answer.members ?? []).map((member) => [member.id, member]));
    this.version = answer.version ?? "";
    this.changed();
  }

  /** Add moves, which are oldest first; those that are known already change nothing. */
  applyMoves(moves) {
    const keyOf = (move) => `${move.revision} ${move.shard} ${move.kind} ${move.member}`;
    const known = new Set(this.moves.map(keyOf));
    const added = moves.filter((move) => !known.has(keyOf(move)));
    if (!added.length) return;
    this.moves = [...added.reverse(), ...this.moves].slice(0, MOVES_MAX);
    this.changed();
  }

  /** All members that are known by themselves or by their replicas. */
  memberIds() {
    const ids = new Set(this.members.keys());
    for (const row of this.shards.values()) for (const replica of row.replicas) ids.add(replica.member);
    return [...ids].sort();
  }

  /** Take what a member tells of its replicas. */
  applyReplicas(member, answer) {
    const now = Date.now() / 1000;
    const told = new Set();
    for (const { shard, behindBytes, slot, readThrough, publishAt, keyed, operations } of answer.replicas ?? []) {
      const bytes = Number(behindBytes ?? 0);
      const key = `${shard} ${member}`;
      const entry = this.lag.get(key) ?? { since: now, history: null, rates: null };
      const rate = rateOf(entry, readThrough ?? {}, now);
      Object.assign(entry, { rate, at: now, member, bytes: bytes < 0 ? null : bytes, slot: slot ?? 0, readThrough: readThrough ?? {}, publishAt: publishAt ?? {}, keyed: keyed ?? null, operations: operations ?? [] });
      // Most replicas never lag, and need no history.
      if (entry.bytes > 0) entry.history ??= new History(entry.since);
      entry.history?.add(now, entry.bytes);
      // Nor do most read all the time.
      if (rate > 0) entry.rates ??= new History(entry.since);
      if (rate !== null) entry.rates?.add(now, rate);
      this.lag.set(key, entry);
      told.add(key);
    }
    for (const [key, entry] of this.lag) if (entry.member === member && !told.has(key)) this.lag.delete(key);
    this.changed();
  }

  /** Note the lag of all replicas together, once all members have told theirs. */
  addTotal() {
    let total = 0;
    let rate = 0;
    for (const entry of this.lag.values()) {
      total += entry.bytes ?? 0;
      rate += entry.rate ?? 0;
    }
    this.totals.add(Date.now() / 1000, total);
    this.rates.add(Date.now() / 1000, rate);
    this.changed();
  }

  /** Lag of each member's replicas together, bytes, and what its primaries read, bytes a second. */
  progressByMember() {
    const found = new Map();
    for (const entry of this.lag.values()) {
      const sum = found.get(entry.member) ?? { bytes: 0, rate: 0 };
      found.set(entry.member, { bytes: sum.bytes + (entry.bytes ?? 0), rate: sum.rate + (entry.rate ?? 0) });
    }
    return found;
  }

  /** URLs of the admin ports that members announced: a browser of a page with TLS calls none without. */
  pages() {
    return [...this.members.values()].map((member) => pageOf(member)).filter((url) => url && new URL(url).protocol === location.protocol);
  }

  /** Progress of a shard's primary. */
  progressOf(row) {
    return row.primary ? this.lag.get(`${row.id} ${row.primary.member}`) : undefined;
  }

  /** Zones with their members, both sorted; members that only replicas name are there, too. */
  zones() {
    const held = new Map([...this.members.keys()].map((member) => [member, []]));
    for (const row of this.shards.values()) {
      for (const replica of row.replicas) {
        if (!held.has(replica.member)) held.set(replica.member, []);
        held.get(replica.member).push({ row, replica });
      }
    }
    const zones = new Map();
    for (const member of [...held.keys()].sort()) {
      const cells = held.get(member).sort((a, b) => (a.row.id < b.row.id ? -1 : 1));
      const zone = zoneOf(member);
      if (!zones.has(zone)) zones.set(zone, []);
      zones.get(zone).push({ member, told: this.members.get(member), cells });
    }
    return zones;
  }

  counts() {
    const counts = Object.fromEntries(STATES.map((state) => [state.key, 0]));
    for (const row of this.shards.values()) counts[row.state] += 1;
    return counts;
  }

  /** Journals that shards read or write: what the table and the members' progress tell of them. */
  journals() {
    const found = new Map();
    const at = (name, role) => {
      if (!found.has(name)) found.set(name, { name, roles: new Set(), shards: [], read: null, written: null });
      found.get(name).roles.add(role);
      return found.get(name);
    };
    for (const row of this.shards.values()) {
      for (const source of row.spec.sources ?? []) {
        const entry = at(source.journal, "source");
        entry.shards.push(row.id);
        const offset = this.progressOf(row)?.readThrough[source.journal];
        // The slowest reader holds the others' content back.
        if (offset !== undefined) entry.read = Math.min(entry.read ?? Infinity, Number(offset));
      }
      if (row.spec.recoveryLogPrefix) at(`${row.spec.recoveryLogPrefix}/${row.id}`, "recovery log").shards.push(row.id);
      for (const [journal, offset] of Object.entries(this.progressOf(row)?.publishAt ?? {})) {
        const entry = at(journal, "output");
        if (!entry.shards.includes(row.id)) entry.shards.push(row.id);
        entry.written = Math.max(entry.written ?? 0, Number(offset));
      }
    }
    return [...found.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  }
}

/**
 * Bytes a second that a primary has read of its sources since the last look; null: that cannot be told, because it is
 * the first look, or its sources were replaced.
 */
function rateOf(before, readThrough, now) {
  if (!before.at || now <= before.at) return null;
  let bytes = 0;
  for (const [journal, offset] of Object.entries(readThrough)) {
    const read = Number(offset) - Number(before.readThrough[journal] ?? NaN);
    if (!(read >= 0)) return null;
    bytes += read;
  }
  return bytes / (now - before.at);
}

/** The last samples of one number, in a ring. */
export class History {
  /** @param since Seconds since when the number was 0, if it was. */
  constructor(since) {
    this.times = new Float64Array(HISTORY_SAMPLES);
    this.values = new Float32Array(HISTORY_SAMPLES);
    this.count = 0;
    if (since !== undefined) this.add(since, 0);
  }

  add(seconds, value) {
    const at = this.count % HISTORY_SAMPLES;
    this.times[at] = seconds;
    this.values[at] = value ?? NaN;
    this.count += 1;
  }

  /** Times and values, oldest first; null where nobody knew. */
  columns() {
    const from = Math.max(0, this.count - HISTORY_SAMPLES);
    const times = [];
    const values = [];
    for (let i = from; i < this.count; i += 1) {
      times.push(this.times[i % HISTORY_SAMPLES]);
      const value = this.values[i % HISTORY_SAMPLES];
      values.push(Number.isNaN(value) ? null : value);
    }
    return [times, values];
  }
}

/** What the page shows of one `consumer.ListResponse.Shard`. */
function rowOf(listed) {
  const spec = listed.spec ?? {};
  const primary = listed.route?.primary ?? 0;
  const replicas = (listed.route?.members ?? []).map((id, index) => {
    const status = listed.status?.[index] ?? {};
    const replica = {
      member: memberName(id),
      isPrimary: index === primary,
      code: status.code ?? "IDLE",
      errors: status.errors ?? [],
      unavailable: status.unavailable ?? "",
    };
    return { ...replica, ...glyphOf(replica) };
  });
  const labels = (spec.labels?.labels ?? []).map((label) => `${label.name}=${label.value ?? ""}`);
  const row = { id: spec.id, spec, replicas, labels, refused: listed.standbysRefused ?? "", revision: listed.modRevision };
  row.state = stateOf(row);
  row.primary = replicas.find((replica) => replica.isPrimary) ?? null;
  row.standbys = replicas.filter((replica) => !replica.isPrimary);
  row.problem = problemOf(row);
  row.text = [row.id, STATE_BY_KEY.get(row.state).word, ...labels, ...replicas.map((each) => each.member)]
    .join("\n").toLowerCase();
  return row;
}

function glyphOf(replica) {
  if (replica.code === "FAILED") return { glyph: "cross", tone: "failed", word: "failed" };
  if (!replica.isPrimary) {
    if (replica.code === "STANDBY" || replica.code === "PRIMARY") return { glyph: "disc", tone: "standby", word: "standby" };
    return { glyph: "chevron", tone: "starting", word: "standby, catching up" };
  }
  if (replica.code !== "PRIMARY") return { glyph: "triangle", tone: "starting", word: "primary, starting" };
  if (replica.unavailable) return { glyph: "diamond", tone: "cutoff", word: "primary, cut off" };
  return { glyph: "square", tone: "serving", word: "primary" };
}

function stateOf(row) {
  if (row.spec.disable) return "disabled";
  if (row.replicas.some((replica) => replica.code === "FAILED")) return "failed";
  const primary = row.replicas.find((replica) => replica.isPrimary);
  if (!primary) return row.replicas.length ? "starting" : "unassigned";
  if (primary.code !== "PRIMARY") return "starting";
  if (primary.unavailable) return "cutoff";
  const caughtUp = row.replicas.filter((replica) => !replica.isPrimary && replica.glyph === "disc").length;
  return caughtUp < (row.spec.hotStandbys ?? 0) ? "degraded" : "serving";
}

function problemOf(row) {
  const failed = row.replicas.find((replica) => replica.errors.length);
  if (failed) return failed.errors[0];
  const cutOff = row.replicas.find((replica) => replica.unavailable);
  return cutOff?.unavailable ?? row.refused;
}
