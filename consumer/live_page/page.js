// The page: views of the cluster, and the loops that keep them current.

import { html, render, useEffect, useMemo, useReducer, useRef, useState } from "./vendored/preact-htm.js";
import { Cluster, REPLICAS, STATES, STATE_BY_KEY, lagStep, memberName, pageOf } from "./cluster.js";
import { Connection } from "./connection.js";
import { Chart, Glyph, ReplicaGrid, Table } from "./parts.js";

const MEMBERS_MS = 5_000;
const REPLICAS_MS = 5_000;
/** How much longer than a look at all members' replicas the page waits for the next: it must be no load. */
const REPLICAS_REST_FACTOR = 5;
const MOVES_MS = 15_000;
const MAY_APPLY_MS = 60_000;
const DETAILS_MS = 5_000;
const LEASES_MS = 5_000;
const LEASE_OWNERS_MAX = 100;
const MOVES_BACK_MS = 60 * 60 * 1000;
const MOVE_PAGES_MAX = 20;
/** Links to pages of other members, where the page's own does not answer. */
const PAGES_MAX = 8;
/** 10,000 shards are drawn four times a second at most. */
const DRAWN_SHARDS_PER_MS = 40;
const THEME_KEY = "broadsheet.theme";
const VIEWS = [
  ["map", "Map"],
  ["shards", "Shards"],
  ["members", "Members"],
  ["moves", "Moves"],
  ["journals", "Journals"],
  ["leases", "Leases"],
];

const cluster = new Cluster();
const dialogs = { askForToken: null };
const connection = new Connection((reason, wasRefused) => dialogs.askForToken(reason, wasRefused), () => cluster.pages(), () => cluster.changed());

// Loops.

/** Call something again and again, also after it failed; the page shows the last failure of each. */
function repeat(milliseconds, work, onState, restFactor = 0) {
  const loop = async () => {
    const began = performance.now();
    try {
      await work();
      onState(null);
    } catch (error) {
      onState(error);
    }
    setTimeout(loop, Math.max(milliseconds, restFactor * (performance.now() - began)));
  };
  loop();
}

/** Ask whether the token permits APPLY: only then does the page offer to change anything. */
async function readMayApply() {
  try {
    await connection.get("page/may-apply");
    cluster.mayApply = true;
  } catch (error) {
    if (error.status !== 403) throw error;
    cluster.mayApply = false;
  }
  cluster.changed();
}

let movesSince = new Date(Date.now() - MOVES_BACK_MS).toISOString();

async function readMoves() {
  let pageToken = "";
  for (let page = 0; page < MOVE_PAGES_MAX; page += 1) {
    const answer = await connection.call("allocation/list_moves", { since: movesSince, ...(pageToken && { pageToken }) });
    cluster.applyMoves(answer.moves ?? []);
    pageToken = answer.nextPageToken ?? "";
    if (!pageToken) break;
  }
  // Moves are in the order of their writers' clocks: the newest ones are read again.
  if (cluster.moves.length) movesSince = new Date(Date.parse(cluster.moves[0].time) - 60_000).toISOString();
}

/** Ask each member for the progress of its replicas, one after the other, through the member that answers here. */
async function readReplicas() {
  let failure = null;
  while (!cluster.isComplete) await new Promise((resolve) => setTimeout(resolve, 100));
  for (const member of cluster.memberIds()) {
    try {
      const answer = await connection.call("state/list_replicas", { member });
      // A member of an older release answers for itself, whoever was asked for.
      cluster.applyReplicas(memberName(answer.header.processId), answer);
    } catch (error) {
      // A member that just left or is cut off must not hide the others.
      failure = new Error(`${member}: ${reasonOf(error)}`);
    }
  }
  cluster.addTotal();
  if (failure) throw failure;
}

/** Words for what may go wrong: the status says whether a retry can help. */
const reasonOf = (error) => (error.status === 403 ? `not permitted: ${error.message}` : error.message);

function start(onState) {
  let movesTimer = 0;
  connection.watch(
    (part) => {
      if (!cluster.applyPart(part)) return;
      clearTimeout(movesTimer);
      movesTimer = setTimeout(() => readMoves().catch((error) => onState("moves", error)), 500);
    },
    (error) => onState("shards", error),
  );
  repeat(MEMBERS_MS, async () => cluster.applyMembers(await connection.call("allocation/list_members")), (e) => onState("members", e));
  repeat(REPLICAS_MS, readReplicas, (error) => onState("lag", error), REPLICAS_REST_FACTOR);
  repeat(MAY_APPLY_MS, readMayApply, (error) => onState("permissions", error));
  repeat(MOVES_MS, readMoves, (error) => onState("moves", error));
}

// Words.

const bytesText = (bytes) => {
  if (bytes === null || bytes === undefined) return "–";
  const unit = Math.min(4, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  return `${unit ? (bytes / 2 ** (10 * unit)).toFixed(1) : Math.round(bytes)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
};
const rateText = (rate) => (rate === null || rate === undefined ? "–" : `${bytesText(rate)}/s`);
const counted = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
const timeText = (time) => new Date(time).toLocaleTimeString();
const enumWord = (value, prefix) => (value ?? "").replace(prefix, "").toLowerCase().replaceAll("_", " ");
const kindWord = (move) => move.decision?.action ?? enumWord(move.kind, "MOVE_KIND_");

/** Why a move was made; of a decision also on what, and what became of it. */
const reasonText = ({ decision, reason }) => {
  if (!decision) return reason ?? "";
  const inputs = Object.entries(decision.inputs ?? {}).sort().map(([name, value]) => `${name}=${+Number(value).toPrecision(4)}`).join(" ");
  return `${decision.rule} (${inputs}), ${enumWord(decision.outcome, "DECISION_OUTCOME_")}${decision.reason ? `: ${decision.reason}` : ""}`;
};
/** Lag of a shard's replica on a member, bytes; null: nobody knows; undefined: not told yet. */
const lagOf = (id, member) => cluster.lag.get(`${id} ${member}`)?.bytes;
const primaryLag = (row) => cluster.progressOf(row)?.bytes;
const primaryRate = (row) => cluster.progressOf(row)?.rate;
const describe = (cell) => {
  if (!cell) return "";
  const { row, replica } = cell;
  const lag = lagOf(row.id, replica.member);
  return `${row.id}: ${replica.word} on ${replica.member}${lag === undefined ? "" : `, lag ${bytesText(lag)}`}` +
    `${row.problem ? `; ${row.problem}` : ""}`;
};

// Views.

function StateMark({ state, theme }) {
  const { glyph, key, word } = STATE_BY_KEY.get(state);
  return html`<${Glyph} glyph=${glyph} tone=${key} theme=${theme} /> ${word}`;
}

function MapView({ shownRows, isShown, selected, open, point, theme, version }) {
  const zones = useMemo(() => cluster.zones(), [version]);
  const homeless = shownRows.filter((row) => !row.replicas.length && row.state !== "disabled");
  const isFresh = ({ row, replica }) => cluster.fresh.has(`${row.id} ${replica.member}`);
  return html`
    <ul class="legend" aria-label="Legend">
      ${REPLICAS.map(({ glyph, tone, word }) => html`<li key=${word}><${Glyph} glyph=${glyph} tone=${tone} theme=${theme} />${word}</li>`)}
      <li class="faint">marks below: lag over 64 KiB, 1 MiB, 16 MiB, 256 MiB; framed: changed just now</li>
    </ul>
    ${homeless.length > 0 && html`<section class="zone" aria-label="Shards without a replica">
      <h2><${Glyph} glyph="ring" tone="unassigned" theme=${theme} /> No replica: ${homeless.length}</h2>
      <div>${homeless.slice(0, 50).map((row) => html`<button type="button" key=${row.id} class="id" onClick=${() => open(row.id)}>${row.id}</button> `)}
        ${homeless.length > 50 ? `and ${homeless.length - 50} more: see Shards` : ""}</div>
    </section>`}
    ${[...zones].map(([zone, members]) => html`<section class="zone" key=${zone} aria-label=${`Zone ${zone}`}>
      <h2>Zone ${zone}</h2>
      <div class="cards">${members.map((each) => html`<${MemberCard} key=${each.member} ...${each} isShown=${isShown} isFresh=${isFresh}
        selected=${selected} open=${open} point=${point} theme=${theme} version=${version} />`)}</div>
    </section>`)}
    ${zones.size === 0 && html`<p class="empty">No member is known yet.</p>`}
    <${NoShards} />`;
}

/** What to do where there is nothing to see. */
function NoShards() {
  if (!cluster.isComplete || cluster.shards.size) return "";
  const address = [...cluster.members.values()][0]?.endpoint;
  const options = address ? ` --address ${address}` : "";
  return html`<section class="zone" aria-label="No shards"><h2>There are no shards${connection.token ? ", or your token covers none" : ""}</h2>
    <p>Declare some in a file, and apply it; they appear here at once:</p>
    <pre>${`shardctl journals apply -f journals.yaml\nshardctl shards apply -f shards.yaml${options}`}</pre>
    <p class="faint"><code>shardctl shards apply --help</code> has examples.</p></section>`;
}

function MemberCard({ member, told, cells, isShown, isFresh, selected, open, point, theme, version }) {
  const primaries = cells.filter((cell) => cell.replica.isPrimary).length;
  return html`<div class="card">
    <div class="title"><strong>${member}</strong><${Badges} told=${told} member=${member} />
      <span class="faint">${cells.length}${told ? ` of ${told.shardLimit ?? 0}` : ""} replicas, ${primaries} primaries</span></div>
    <${ReplicaGrid} cells=${cells} label=${`${cells.length} replicas of ${member}; arrow keys, Enter opens`}
      isShown=${isShown} isFresh=${isFresh} lagOf=${(cell) => lagOf(cell.row.id, member)}
      selected=${selected} onOpen=${open} onPoint=${point} theme=${theme} version=${version} />
  </div>`;
}

/** How far a drain is; the message is absent from members of earlier versions, and `etaS` is -1 if unknown. */
function leavingText(drain) {
  if (!drain) return "leaving";
  const left = Number(drain.toDo ?? 0);
  const seconds = drain.etaS ?? 0;
  return `leaving: ${left} of ${left + Number(drain.done ?? 0)} left${left && seconds >= 0 ? `, ${Math.ceil(seconds)} s` : ""}`;
}

function Badges({ told, member }) {
  const badges = [];
  if (!told) badges.push("gone");
  if (told?.leads) badges.push("leads");
  if (told?.exiting) badges.push(leavingText(told.drain));
  if (told?.cordoned) badges.push("cordoned");
  if (member === cluster.observer) badges.push("answers here");
  return badges.map((badge) => html`<span class="badge" key=${badge}>${badge}</span>`);
}

function ShardsView({ shownRows, selected, open, theme }) {
  const columns = [
    { key: "state", title: "State", track: "11rem", order: (row) => STATE_BY_KEY.get(row.state).rank, cell: (row) => html`<${StateMark} state=${row.state} theme=${theme} />` },
    { key: "id", title: "Shard", track: "minmax(8rem, 2fr)", order: (row) => row.id, cell: (row) => html`<span class="id">${row.id}</span>` },
    { key: "primary", title: "Primary", track: "minmax(7rem, 1fr)", order: (row) => row.primary?.member ?? "", cell: (row) => row.primary?.member ?? "–" },
    { key: "standbys", title: "Standbys", track: "minmax(7rem, 1fr)", order: (row) => row.standbys.length, cell: (row) => row.standbys.map((each) => each.member).join(", ") || "–" },
    { key: "lag", title: "Lag", track: "6rem", order: (row) => primaryLag(row) ?? -1, cell: (row) => { const lag = primaryLag(row); return `${"▮".repeat(lagStep(lag ?? 0))} ${bytesText(lag)}`; } },
    { key: "rate", title: "Reads", track: "6rem", order: (row) => primaryRate(row) ?? -1, cell: (row) => rateText(primaryRate(row)) },
    { key: "problem", title: "Problem", track: "minmax(8rem, 2fr)", order: (row) => row.problem, cell: (row) => row.problem },
  ];
  if (cluster.isComplete && !cluster.shards.size) return html`<${NoShards} />`;
  return html`<${Table} name="Shards" columns=${columns} rows=${shownRows} keyOf=${(row) => row.id} ordered=${{ key: "state", down: false }}
    onOpen=${(row) => open(row.id)} selected=${selected} />`;
}

function MembersView({ theme, version, confirm }) {
  const cordon = (member, cordoned) => confirm({
    title: cordoned ? `Cordon ${member}?` : `Uncordon ${member}?`,
    text: cordoned ? "It keeps its replicas, and gets no others until it is uncordoned." : "It gets replicas again.",
    act: async () => {
      await connection.call("allocation/cordon_members", { members: [member], cordoned });
      cluster.applyMembers(await connection.call("allocation/list_members"));
    },
  });
  const [plan, setPlan] = useState(null);
  const zones = useMemo(() => [...cluster.zones().values()].flat(), [version]);
  const progress = useMemo(() => cluster.progressByMember(), [version]);
  const planDrain = async (member) => {
    setPlan({ member });
    try {
      setPlan({ member, answer: await connection.call("allocation/plan", { drain: [member] }) });
    } catch (error) {
      setPlan({ member, error });
    }
  };
  const columns = [
    { key: "member", title: "Member", track: "minmax(8rem, 2fr)", order: (each) => each.member, cell: (each) => each.member },
    { key: "flags", title: "", track: "minmax(8rem, 1fr)", cell: (each) => html`<${Badges} told=${each.told} member=${each.member} />` },
    { key: "replicas", title: "Replicas", track: "7rem", order: (each) => each.cells.length, cell: (each) => `${each.cells.length} of ${each.told?.shardLimit ?? "?"}` },
    { key: "primaries", title: "Primaries", track: "6rem", order: (each) => each.told?.primaries ?? 0, cell: (each) => each.told?.primaries ?? 0 },
    { key: "lag", title: "Lag", track: "6rem", order: (each) => progress.get(each.member)?.bytes ?? -1, cell: (each) => bytesText(progress.get(each.member)?.bytes) },
    { key: "rate", title: "Reads", track: "6rem", order: (each) => progress.get(each.member)?.rate ?? -1, cell: (each) => rateText(progress.get(each.member)?.rate) },
    { key: "page", title: "Page", track: "4rem", cell: (each) => html`<${PageLink} member=${each.told} />` },
    { key: "endpoint", title: "Endpoint", track: "minmax(8rem, 2fr)", cell: (each) => html`<span class="id">${each.told?.endpoint ?? ""}</span>` },
    { key: "do", title: "", track: cluster.mayApply ? "14rem" : "8rem", cell: (each) => html`
      <button type="button" onClick=${(event) => { event.stopPropagation(); planDrain(each.member); }} aria-label=${`Plan drain of ${each.member}`}>Plan drain</button>
      ${cluster.mayApply && each.told && html` <button type="button" aria-label=${`${each.told.cordoned ? "Uncordon" : "Cordon"} ${each.member}`}
        onClick=${(event) => { event.stopPropagation(); cordon(each.member, !each.told.cordoned); }}>${each.told.cordoned ? "Uncordon" : "Cordon"}</button>`}` },
  ];
  return html`<p class="faint">A plan shows what would move if a member left; it changes nothing. Enter plans the drain of the row at the cursor.</p>
    <${Table} name="Members" columns=${columns} rows=${zones} keyOf=${(each) => each.member} onOpen=${(each) => planDrain(each.member)} selected=${plan?.member} />
    ${plan
      ? html`<${Plan} ...${plan} close=${() => setPlan(null)} />`
      : html`<section aria-label="Lag of the cluster"><h2>Lag of all replicas</h2>
          <${Chart} columns=${cluster.totals.columns()} label="Lag of all replicas, bytes" format=${bytesText} theme=${theme} />
          <h2>What all primaries read</h2>
          <${Chart} columns=${cluster.rates.columns()} label="What all primaries read, bytes a second" format=${rateText} theme=${theme} /></section>`}`;
}

/** A link to a member's own page. No referrer, and no way back to this page. */
function PageLink({ member, children }) {
  const url = pageOf(member);
  return url && html`<a href=${url} target="_blank" rel="noopener noreferrer" aria-label=${`Page of ${member.id}`}
    onClick=${(event) => event.stopPropagation()}>${children?.length ? children : "open"}</a>`;
}

function Plan({ member, answer, error, close }) {
  const changes = answer?.changes ?? [];
  const waits = answer?.waits ?? [];
  const rounds = changes.reduce((most, change) => Math.max(most, (change.round ?? 0) + 1), 0);
  const columns = [
    { key: "round", title: "Round", track: "5rem", order: (change) => change.round ?? 0, cell: (change) => (change.round ?? 0) + 1 },
    { key: "kind", title: "Change", track: "8rem", order: (change) => change.kind, cell: (change) => enumWord(change.kind, "CHANGE_KIND_") },
    { key: "shard", title: "Shard", track: "2fr", order: (change) => change.shard, cell: (change) => html`<span class="id">${change.shard}</span>` },
    { key: "member", title: "Member", track: "1fr", order: (change) => change.member, cell: (change) => (change.fromMember ? `${change.fromMember} → ${change.member}` : change.member) },
    { key: "cold", title: "", track: "1fr", cell: (change) => (change.cold ? "⚠ nobody serves meanwhile" : "") },
  ];
  return html`<section aria-label="Plan of a drain" aria-live="polite">
      <h2>If ${member} left <button type="button" onClick=${close}>Close</button></h2>
      ${error && html`<p class="alarm">${reasonOf(error)}</p>`}
      ${!answer && !error && html`<p>Asking the leader…</p>`}
      ${answer && html`<p>${counted(changes.length, "change")} in ${counted(rounds, "round")} at revision ${answer.revision}, planned by ${answer.leader};
        ${` ${changes.filter((change) => change.cold).length}`} leave a shard unserved meanwhile.
        ${waits.length ? ` ${waits.length} wait, ${waits.filter((wait) => wait.forEver).length} of them for ever.` : " Nothing waits."}</p>
        ${waits.length > 0 && html`<ul class="plain">${waits.slice(0, 8).map((wait) => html`<li key=${`${wait.shard} ${wait.member} ${wait.reason}`}>
          <span class="id">${wait.shard}</span>: ${enumWord(wait.reason, "WAIT_REASON_")}${wait.detail ? ` (${wait.detail})` : ""}</li>`)}
          ${waits.length > 8 && html`<li>and ${waits.length - 8} more</li>`}</ul>`}
        <table><thead><tr><th>Member</th><th>Replicas</th><th>Primaries</th></tr></thead><tbody>
          ${(answer.members ?? []).slice(0, 100).map((each) => html`<tr key=${each.member}><td>${each.member}</td>
            <td>${each.replicasBefore ?? 0} → ${each.replicasAfter ?? 0}</td><td>${each.primariesBefore ?? 0} → ${each.primariesAfter ?? 0}</td></tr>`)}
        </tbody></table>`}
    </section>
    ${changes.length > 0 && html`<${Table} name="Planned changes" columns=${columns} rows=${changes}
      keyOf=${(change) => `${change.round} ${change.kind} ${change.shard} ${change.member}`} />`}`;
}

function MovesView({ words, open }) {
  const columns = [
    { key: "time", title: "Time", track: "7rem", cell: (move) => timeText(move.time) },
    { key: "kind", title: "Move", track: "7rem", order: kindWord, cell: kindWord },
    { key: "shard", title: "Shard", track: "minmax(8rem, 2fr)", order: (move) => move.shard ?? "", cell: (move) => html`<span class="id">${move.shard ?? ""}</span>` },
    { key: "member", title: "Member", track: "minmax(7rem, 1fr)", order: (move) => move.member ?? "", cell: (move) => move.member ?? "" },
    { key: "slot", title: "Slot", track: "5rem", cell: (move) => move.decision ? "" : `${(move.fromSlot ?? 0) < 0 ? "–" : (move.fromSlot ?? 0)} → ${move.kind === "MOVE_KIND_REMOVE" ? "–" : (move.slot ?? 0)}` },
    { key: "reason", title: "Because", track: "1fr", order: (move) => move.reason ?? "", cell: reasonText },
    { key: "actor", title: "By", track: "1fr", order: (move) => move.actor ?? "", cell: (move) => move.actor || move.writer },
  ];
  // Words may also be of the shard, because the same search is over all views.
  const textOf = (move) => `${move.shard ?? ""} ${move.member ?? ""} ${reasonText(move)} ${kindWord(move)} ${move.actor ?? ""}`.toLowerCase() + (cluster.shards.get(move.shard)?.text ?? "");
  const rows = cluster.moves.filter((move) => {
    const text = textOf(move);
    return words.every((word) => text.includes(word));
  });
  return html`<${Table} name="Moves" columns=${columns} rows=${rows} onOpen=${(move) => move.shard && open(move.shard)}
    keyOf=${(move) => `${move.revision} ${move.shard} ${move.kind} ${move.member}`} />`;
}

function JournalsView({ words, version, search }) {
  const rows = useMemo(() => cluster.journals(), [version])
    .filter((journal) => words.every((word) => `${journal.name} ${[...journal.roles].join(" ")} ${journal.shards.join(" ")}`.toLowerCase().includes(word)));
  const columns = [
    { key: "name", title: "Journal", track: "minmax(10rem, 3fr)", order: (each) => each.name, cell: (each) => html`<span class="id">${each.name}</span>` },
    { key: "role", title: "Is a", track: "10rem", order: (each) => [...each.roles].join(), cell: (each) => [...each.roles].join(", ") },
    { key: "shards", title: "Of shards", track: "2fr", order: (each) => each.shards.length, cell: (each) => `${each.shards.length}: ${each.shards.slice(0, 3).join(", ")}` },
    { key: "read", title: "Read through", track: "8rem", order: (each) => each.read ?? -1, cell: (each) => each.read ?? "–" },
    { key: "written", title: "Published to", track: "8rem", order: (each) => each.written ?? -1, cell: (each) => each.written ?? "–" },
  ];
  return html`<p class="faint">Journals that the shards read, log to and publish to. The slowest reader of a journal counts.</p>
    <${Table} name="Journals" columns=${columns} rows=${rows} keyOf=${(each) => each.name} onOpen=${(each) => each.shards[0] && search(each.name)} />`;
}

const LEASE_STATES = [
  { word: "held", glyph: "square", tone: "serving", rank: 2, means: "its owner lives, as the store says" },
  { word: "owned", glyph: "disc", tone: "standby", rank: 3, means: "the store does not say whether its owner lives: one that does renews it" },
  { word: "claimed", glyph: "triangle", tone: "starting", rank: 1, means: "another worker asked for it" },
  { word: "free", glyph: "ring", tone: "unassigned", rank: 0, means: "nobody has it" },
  { word: "finished", glyph: "dash", tone: "disabled", rank: 4, means: "its shard was read to the end" },
];
const leaseState = (lease) => LEASE_STATES.find((each) => lease.state.startsWith(each.word)) ?? LEASE_STATES[1];
/** When each lease was first seen as it is now, by store and key: only movement shows that an owner lives. */
const leaseSeen = new Map();

/** Note what moved since the last look, and return one row a lease. */
function leaseRows(stores, now) {
  const rows = stores.flatMap(({ store, leases }) => (leases ?? []).map((lease) => {
    const id = `${store} ${lease.key}`;
    const mark = JSON.stringify(lease);
    if (leaseSeen.get(id)?.mark !== mark) leaseSeen.set(id, { mark, since: now });
    return { ...lease, id, store, since: leaseSeen.get(id).since };
  }));
  const ids = new Set(rows.map((row) => row.id));
  for (const id of leaseSeen.keys()) if (!ids.has(id)) leaseSeen.delete(id);
  return rows;
}

/** Leases of workers that are no members: asked for while they are looked at, because reading a store may cost. */
function LeasesView({ words, theme }) {
  const [told, setTold] = useState({});
  const [owner, setOwner] = useState("");
  useEffect(() => {
    let timer = 0;
    let isOpen = true;
    const look = async () => {
      try {
        const { stores } = await connection.get("page/leases");
        const now = Date.now();
        if (isOpen) setTold({ stores, now, rows: leaseRows(stores, now) });
      } catch (error) {
        if (isOpen) setTold((before) => ({ ...before, error }));
      }
      if (isOpen) timer = setTimeout(look, LEASES_MS);
    };
    look();
    return () => {
      isOpen = false;
      clearTimeout(timer);
    };
  }, []);
  const { stores, error, now } = told;
  const all = told.rows ?? [];
  const rows = all.filter((row) => (!owner || row.owner === owner) && words.every((word) => `${row.key} ${row.owner} ${row.state} ${row.store}`.toLowerCase().includes(word)));
  const owners = new Map();
  for (const row of all) if (row.owner !== "-") owners.set(row.owner, (owners.get(row.owner) ?? 0) + 1);
  const columns = [
    { key: "state", title: "State", track: "minmax(7rem, 1fr)", order: (row) => leaseState(row).rank, cell: (row) => html`<${Glyph} glyph=${leaseState(row).glyph} tone=${leaseState(row).tone} theme=${theme} /> ${row.state}` },
    { key: "key", title: "Lease", track: "minmax(8rem, 2fr)", order: (row) => row.key, cell: (row) => html`<span class="id">${row.key}</span>` },
    { key: "owner", title: "Owner", track: "minmax(7rem, 1fr)", order: (row) => row.owner, cell: (row) => row.owner },
    { key: "checkpoint", title: "Checkpoint", track: "minmax(7rem, 1fr)", cell: (row) => html`<span class="id">${row.checkpoint}${row.pending === "-" ? "" : ` (pending ${row.pending})`}</span>` },
    { key: "moved", title: "Unchanged", track: "7rem", order: (row) => row.since, cell: (row) => `${Math.round((now - row.since) / 1000)} s` },
    { key: "epoch", title: "Epoch", track: "6rem", order: (row) => Number(row.epoch), cell: (row) => row.epoch },
    { key: "store", title: "Store", track: "minmax(8rem, 1fr)", order: (row) => row.store, cell: (row) => html`<span class="id">${row.store}</span>` },
  ];
  if (stores?.length === 0) {
    return html`<p class="empty">This member shows no leases. Start it with <code>--lease-store</code> and the address of a store, as <code>shardctl leases list</code> takes it.</p>`;
  }
  return html`
    <ul class="legend" aria-label="States of leases">${LEASE_STATES.map(({ word, glyph, tone, means }) => html`<li key=${word} title=${means}><${Glyph} glyph=${glyph} tone=${tone} theme=${theme} />${word}</li>`)}
      <li class="faint">unchanged: since this page has seen it change; a live owner renews its leases</li></ul>
    ${error && html`<p class="alarm" role="alert">${reasonOf(error)}</p>`}
    ${(stores ?? []).filter((each) => each.error || each.more).map((each) => html`<p class="alarm" role="alert" key=${each.store}>
      <span class="id">${each.store}</span>: ${each.error ?? `there are more than the ${each.leases.length} leases that are shown`}</p>`)}
    <div class="states" role="group" aria-label="Filter by owner">
      ${[...owners].sort(([a], [b]) => (a < b ? -1 : 1)).slice(0, LEASE_OWNERS_MAX).map(([name, count]) => html`<button type="button" key=${name} aria-pressed=${owner === name}
        onClick=${() => setOwner(owner === name ? "" : name)}>${name} <strong>${count}</strong></button>`)}
    </div>
    <${Table} name="Leases" columns=${columns} rows=${rows} keyOf=${(row) => row.id} ordered=${{ key: "state", down: false }} />`;
}

/** One shard: what is wrong with it, why it is where it is, how far it has come. */
function Details({ id, close, theme, confirm }) {
  const row = cluster.shards.get(id);
  const [told, setTold] = useState({});
  const heading = useRef(null);
  useEffect(() => {
    let isOpen = true;
    setTold({});
    heading.current?.focus();
    const ask = async (key, call) => {
      try {
        const answer = await call();
        if (isOpen) setTold((before) => ({ ...before, [key]: { answer } }));
      } catch (error) {
        if (isOpen) setTold((before) => ({ ...before, [key]: { error } }));
      }
    };
    const look = () => {
      ask("explain", () => connection.call("allocation/explain", { shard: id }));
      ask("stat", () => connection.call("shards/stat", { shard: id }));
    };
    look();
    const timer = setInterval(look, DETAILS_MS);
    return () => {
      isOpen = false;
      clearInterval(timer);
    };
  }, [id]);
  const lag = row && cluster.progressOf(row);
  const moves = cluster.moves.filter((move) => move.shard === id).slice(0, 20);
  const unassign = () => confirm({
    title: `Unassign ${id}?`,
    text: `Its ${counted(row.replicas.length, "replica")} stop, and start again where the allocator places them. Until then nobody serves the shard.`,
    act: async () => {
      const answer = await connection.call("shards/unassign", { shards: [id] });
      if ((answer.status ?? "OK") !== "OK") throw new Error(`the member answered ${enumWord(answer.status, "")}: try again`);
    },
  });
  return html`<aside aria-label=${`Shard ${id}`}>
    <div class="bar"><h2 class="id" tabindex="-1" ref=${heading}>${id}</h2><button type="button" onClick=${close}>Close</button></div>
    ${!row ? html`<p>There is no such shard, or your token does not cover it.</p>` : html`
      <p><${StateMark} state=${row.state} theme=${theme} />
        ${cluster.mayApply && row.replicas.length > 0 && html` <button type="button" onClick=${unassign}>Unassign…</button>`}</p>
      ${row.replicas.filter((each) => each.errors.length || each.unavailable).map((each) => html`<div key=${each.member}>
        <strong>${each.member}</strong><pre>${[...each.errors, each.unavailable].filter(Boolean).join("\n")}</pre></div>`)}
      ${row.refused && html`<p>${row.refused}</p>`}
      <${Explanation} row=${row} told=${told.explain} theme=${theme} />
      <${Operations} row=${row} />
      <h3>Lag</h3>
      ${lag
        ? html`<p>${bytesText(lag.bytes)} for the primary to read; it reads ${rateText(lag.rate)}</p>
          <${Chart} columns=${lag.history?.columns() ?? [[lag.since, lag.at], [0, lag.bytes]]} label=${`Lag of ${id}, bytes`} format=${bytesText} theme=${theme} />
          <h3>Reads</h3>
          <${Chart} columns=${lag.rates?.columns() ?? [[lag.since, lag.at], [0, 0]]} label=${`What ${id} reads, bytes a second`} format=${rateText} theme=${theme} />`
        : html`<p class="faint">Not told yet.</p>`}
      ${lag?.keyed && html`<${KeyedState} keyed=${lag.keyed} />`}
      <h3>Offsets</h3>
      <${Offsets} row=${row} told=${told.stat} />
      <h3>Moves</h3>
      ${moves.length
        ? html`<ul class="plain">${moves.map((move) => html`<li key=${`${move.revision} ${move.kind} ${move.member}`}>${timeText(move.time)} ${kindWord(move)} ${move.member ?? ""}: ${reasonText(move)}${move.actor ? `, by ${move.actor}` : ""}</li>`)}</ul>`
        : html`<p class="faint">None in the last hour.</p>`}
      <h3>Labels</h3>
      <p>${row.labels.length ? row.labels.map((label) => html`<code key=${label}>${label}</code> `) : html`<span class="faint">none</span>`}</p>
      <details><summary>Spec at revision ${row.revision}</summary><pre>${JSON.stringify(row.spec, null, 2)}</pre></details>`}
  </aside>`;
}

function Explanation({ row, told, theme }) {
  const answer = told?.answer;
  const explained = new Map((answer?.replicas ?? []).map((each) => [each.member, each]));
  return html`<h3>Replicas: ${row.replicas.length} of ${(row.spec.disable ? 0 : 1 + (row.spec.hotStandbys ?? 0))}</h3>
    <table><tbody>${row.replicas.map((replica) => {
      const why = explained.get(replica.member);
      return html`<tr key=${replica.member}><td><${Glyph} glyph=${replica.glyph} tone=${replica.tone} theme=${theme} /> ${replica.word}</td>
        <td>${replica.member}</td><td>${why?.why ?? ""}${lagOf(row.id, replica.member) > 0 ? `; ${bytesText(lagOf(row.id, replica.member))} behind` : ""}</td></tr>`;
    })}</tbody></table>
    ${told?.error && html`<p class="alarm">${reasonOf(told.error)}</p>`}
    ${answer && html`<p>${answer.risk ? `At stake: ${answer.risk}. ` : ""}${answer.plannedPrimary && answer.plannedPrimary !== row.primary?.member ? `The primary should be ${answer.plannedPrimary}. ` : ""}</p>
      ${(answer.waits ?? []).length > 0 && html`<ul class="plain">${answer.waits.map((wait) => html`<li key=${`${wait.member} ${wait.reason}`}>
        waits: ${enumWord(wait.reason, "WAIT_REASON_")}${wait.member ? ` of ${wait.member}` : ""}${wait.detail ? ` (${wait.detail})` : ""}</li>`)}</ul>`}
      ${(answer.notes ?? []).length > 0 && html`<ul class="plain">${answer.notes.map((note) => html`<li key=${note}>${note}</li>`)}</ul>`}`}`;
}

/** Longer operations of a shard's replicas: how far each is, and how long the rest takes. */
function Operations({ row }) {
  const known = row.replicas.flatMap((replica) => (cluster.lag.get(`${row.id} ${replica.member}`)?.operations ?? []).map((each) => ({ ...each, member: replica.member })));
  // A standby that has caught up follows its primary for as long as it lives.
  const operations = known.filter((each) => each.kind !== "PROGRESS_KIND_PLAYBACK" || each.phase !== "following");
  if (!operations.length) return null;
  return html`<h3>Under way</h3>
    <ul class="plain">${operations.map((each) => html`<li key=${`${each.kind} ${each.member}`}>${enumWord(each.kind, "PROGRESS_KIND_")} on ${each.member}, ${each.phase}: ${amountText(each.toDo, each.unit)} left, ${(each.etaS ?? 0) < 0 ? "time unknown" : `${Math.round(each.etaS ?? 0)} s`}</li>`)}</ul>`;
}

/** An amount with its unit; `?` if it is unknown. */
const amountText = (count, unit) => {
  const number = Number(count ?? 0);
  if (number < 0) return "?";
  return unit === "PROGRESS_UNIT_BYTES" ? bytesText(number) : `${number.toLocaleString("en")} ${enumWord(unit, "PROGRESS_UNIT_")}`;
};

/** What the keyed state of a primary amounts to, as its transactions left it. */
function KeyedState({ keyed }) {
  const facts = [
    ["rows, about", Number(keyed.rows ?? 0).toLocaleString("en")],
    ["state, about", bytesText(Number(keyed.stateBytes ?? 0))],
    ["watermark", Number(keyed.watermarkMs ?? 0) ? dateText(keyed.watermarkMs) : "none yet"],
    ["next timer", keyed.nextTimerMs === undefined ? "none" : dateText(keyed.nextTimerMs)],
    ["late rows", Number(keyed.lateRows ?? 0).toLocaleString("en")],
  ];
  return html`<h3>Keyed state</h3>
    <table><tbody>${facts.map(([name, text]) => html`<tr key=${name}><td>${name}</td><td>${text}</td></tr>`)}</tbody></table>`;
}

/** A time in Unix milliseconds, which an application may have made of anything, as text. */
function dateText(ms) {
  const date = new Date(Number(ms));
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString();
}

function Offsets({ row, told }) {
  const read = told?.answer?.readThrough ?? {};
  const written = Object.entries(told?.answer?.publishAt ?? {});
  const status = told?.answer?.status;
  return html`${told?.error && html`<p class="faint">${reasonOf(told.error)}</p>`}
    ${status && status !== "OK" && html`<p class="faint">The primary does not answer: ${enumWord(status, "")}</p>`}
    <table><tbody>${(row.spec.sources ?? []).map((source) => html`<tr key=${source.journal}><td class="id">${source.journal}</td><td>read through ${read[source.journal] ?? "–"}</td></tr>`)}
      ${written.map(([journal, offset]) => html`<tr key=${journal}><td class="id">${journal}</td><td>published to ${offset}</td></tr>`)}</tbody></table>`;
}

/** Links to the pages of some members. */
function Pages() {
  const members = [...cluster.members.values()].filter((member) => pageOf(member));
  return members.slice(0, PAGES_MAX).map((member) => html`<${PageLink} key=${member.id} member=${member}>${member.id}<//> `);
}

// Dialogs.

/**
 * Show a dialog while `shown` is something, and call `close` when its reader closes it.
 *
 * A browser tells the page later that a dialog was closed. Where the page closed it, that is no reader's wish: the
 * dialog may already be shown again, with another question.
 */
function useDialog(shown, close) {
  const dialog = useRef(null);
  const closedByPage = useRef(0);
  useEffect(() => {
    if (shown && !dialog.current.open) dialog.current.showModal();
    if (!shown && dialog.current.open) {
      closedByPage.current += 1;
      dialog.current.close();
    }
  }, [shown]);
  const onClose = () => {
    if (closedByPage.current > 0) closedByPage.current -= 1;
    else close?.();
  };
  return [dialog, onClose];
}

function TokenDialog({ asked }) {
  const [dialog, onClose] = useDialog(asked);
  const input = useRef(null);
  const give = (event) => {
    event.preventDefault();
    const token = input.current.value.trim();
    if (!token) return;
    input.current.value = "";
    asked.give(token);
  };
  return html`<dialog ref=${dialog} aria-labelledby="token-title" onClose=${onClose} onCancel=${(event) => event.preventDefault()}>
    <form onSubmit=${give}>
      <h2 id="token-title">Token</h2>
      <p>This member serves callers with a token that permits LIST: <code>shardctl token</code> makes one. It is kept in this tab only.</p>
      ${asked?.wasRefused && html`<p class="alarm" role="alert">The token was refused: ${asked.reason}</p>`}
      <input type="password" autocomplete="off" aria-label="Token" ref=${input} autofocus />
      <div class="buttons"><button type="submit">Use token</button></div>
    </form>
  </dialog>`;
}

/** Ask before anything is changed, and tell what became of it. */
function ConfirmDialog({ asked, close }) {
  const [dialog, onClose] = useDialog(asked, close);
  const [state, setState] = useState({});
  useEffect(() => setState({}), [asked]);
  const act = async (event) => {
    event.preventDefault();
    setState({ isBusy: true });
    try {
      await asked.act();
      close();
    } catch (error) {
      setState({ error });
    }
  };
  return html`<dialog id="confirm" ref=${dialog} aria-labelledby="confirm-title" onClose=${onClose}><form onSubmit=${act}>
    <h2 id="confirm-title">${asked?.title}</h2>
    <p>${asked?.text}</p>
    ${state.error && html`<p class="alarm" role="alert">${reasonOf(state.error)}</p>`}
    <div class="buttons"><button type="button" onClick=${close} autofocus>Cancel</button>
      <button type="submit" disabled=${state.isBusy}>${asked?.title.split(" ")[0]}</button></div>
  </form></dialog>`;
}

function HelpDialog({ isOpen, close }) {
  const [dialog, onClose] = useDialog(isOpen, close);
  return html`<dialog ref=${dialog} onClose=${onClose} aria-labelledby="help-title"><form method="dialog">
    <h2 id="help-title">Keys</h2>
    <p><kbd>/</kbd> search, <kbd>1</kbd> to <kbd>${VIEWS.length}</kbd> views, <kbd>Esc</kbd> leaves the search or closes a shard, <kbd>t</kbd> light or dark, <kbd>?</kbd> this.</p>
    <p>In lists and grids: arrow keys, <kbd>Home</kbd>, <kbd>End</kbd>, in lists <kbd>Page Up</kbd> and <kbd>Page Down</kbd>; <kbd>Enter</kbd> opens.</p>
    <p>Search takes words that must all occur in a shard's id, labels, members or state.</p>
    <div class="buttons"><button>Close</button></div>
  </form></dialog>`;
}

// The whole.

function useTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const [chosen, choose] = useState(sessionStorage.getItem(THEME_KEY));
  const [, look] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    dark.addEventListener("change", look);
    return () => dark.removeEventListener("change", look);
  }, []);
  const theme = chosen ?? (dark.matches ? "dark" : "light");
  // Before anything is drawn: canvases take their colours from the document.
  document.documentElement.dataset.theme = theme;
  const toggle = () => {
    const other = theme === "dark" ? "light" : "dark";
    sessionStorage.setItem(THEME_KEY, other);
    choose(other);
  };
  return [theme, toggle];
}

/** Draw again when the cluster changed: at most once a frame, and less often the more there is to draw. */
function useCluster() {
  const [version, draw] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    let isDue = false;
    const listener = () => {
      if (isDue) return;
      isDue = true;
      setTimeout(() => requestAnimationFrame(() => {
        isDue = false;
        draw();
      }), cluster.shards.size / DRAWN_SHARDS_PER_MS);
    };
    cluster.listeners.add(listener);
    const ageing = setInterval(() => cluster.fresh.size && (cluster.ageFresh(), listener()), 1_000);
    return () => {
      cluster.listeners.delete(listener);
      clearInterval(ageing);
    };
  }, []);
  return version;
}

function Page() {
  const version = useCluster();
  const [theme, toggleTheme] = useTheme();
  const [view, setView] = useState(location.hash.slice(1) || "map");
  const [search, setSearch] = useState("");
  const [states, setStates] = useState(new Set());
  const [selected, setSelected] = useState("");
  const [pointed, setPointed] = useState(null);
  const [failures, setFailures] = useState({});
  const [asked, setAsked] = useState(null);
  const [helps, setHelps] = useState(false);
  const [confirmed, setConfirmed] = useState(null);
  const searchBox = useRef(null);
  const opener = useRef(null);

  const open = (id) => {
    opener.current = document.activeElement;
    setSelected(id);
  };
  const close = () => {
    setSelected("");
    opener.current?.focus?.();
  };
  const show = (name) => {
    history.replaceState(null, "", `#${name}`);
    setPointed(null);
    setView(name);
  };
  useEffect(() => {
    dialogs.askForToken = (reason, wasRefused) => new Promise((resolve) => {
      setAsked({ reason, wasRefused, give: (token) => { setAsked(null); resolve(token); } });
    });
    start((key, error) => setFailures((before) => ((before[key]?.message ?? null) === (error?.message ?? null) ? before : { ...before, [key]: error })));
  }, []);
  useEffect(() => {
    const onKeyDown = (event) => {
      if (event.key === "Escape" && event.target === searchBox.current) {
        // The words stay: keys of the page work again, on what they found.
        event.preventDefault();
        return (document.querySelector("#view .body") ?? document.querySelector(`#tab-${view}`)).focus();
      }
      if (event.key === "Escape" && selected && !asked && !helps && !confirmed) return close();
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, dialog *")) return;
      const actions = { "/": () => searchBox.current.focus(), "?": () => setHelps(true), t: toggleTheme };
      VIEWS.forEach(([name], index) => (actions[index + 1] = () => show(name)));
      if (!(event.key in actions)) return;
      event.preventDefault();
      actions[event.key]();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  });

  const words = useMemo(() => search.toLowerCase().split(/\s+/).filter(Boolean), [search]);
  const isShown = (row) => (!states.size || states.has(row.state)) && words.every((word) => row.text.includes(word));
  const shownRows = useMemo(() => [...cluster.shards.values()].filter(isShown), [version, words, states]);
  const counts = useMemo(() => cluster.counts(), [version]);
  const flip = (key) => {
    const next = new Set(states);
    if (!next.delete(key)) next.add(key);
    setStates(next);
  };
  const drawn = `${version} ${search} ${[...states]}`;
  const common = { shownRows, isShown, selected, open, point: setPointed, theme, version: drawn, words, confirm: setConfirmed };
  const alarms = Object.entries(failures).filter(([, error]) => error);
  const views = {
    map: () => html`<${MapView} ...${common} />`,
    shards: () => html`<${ShardsView} ...${common} />`,
    members: () => html`<${MembersView} ...${common} />`,
    moves: () => html`<${MovesView} ...${common} />`,
    journals: () => html`<${JournalsView} ...${common} search=${(text) => { setSearch(text); show("shards"); }} />`,
    leases: () => html`<${LeasesView} ...${common} />`,
  };
  return html`<div class="page">
    <header>
      <h1>Broadsheet</h1>
      <span class="faint">${cluster.observer ? `as ${cluster.observer} sees it${cluster.version ? ` (${cluster.version})` : ""}, revision ${cluster.revision}` : "connecting"}</span>
      <span id="status" role="status">${failures.shards ? "✕ not current" : cluster.isComplete ? "● live" : "… loading"}</span>
      ${connection.token && html`<button type="button" onClick=${() => { connection.forgetToken(); location.reload(); }}>Forget token</button>`}
      <button type="button" onClick=${toggleTheme} aria-label="Light or dark">${theme === "dark" ? "☀ Light" : "☾ Dark"}</button>
      <button type="button" onClick=${() => setHelps(true)} aria-label="Keys">?</button>
    </header>
    <div>
      <div class="tools">
        <input type="search" placeholder="Search: id, label, member, state ( / )" aria-label="Search shards" ref=${searchBox}
          value=${search} onInput=${(event) => setSearch(event.target.value)} />
        <div class="states" role="group" aria-label="Filter by state">
          ${STATES.map(({ key, glyph, word }) => html`<button type="button" key=${key} data-state=${key} class=${counts[key] ? "" : "zero"} aria-pressed=${states.has(key)} onClick=${() => flip(key)}>
            <${Glyph} glyph=${glyph} tone=${key} theme=${theme} />${word} <strong>${counts[key]}</strong></button>`)}
        </div>
      </div>
      <nav role="tablist" aria-label="Views">
        ${VIEWS.map(([name, title], index) => html`<button type="button" role="tab" key=${name} id=${`tab-${name}`} aria-selected=${view === name} aria-controls="view"
          onClick=${() => show(name)}>${title} <kbd aria-hidden="true">${index + 1}</kbd></button>`)}
      </nav>
    </div>
    <main class=${selected ? "split" : ""}>
      <div class="view" id="view" role="tabpanel" aria-labelledby=${`tab-${view}`}>${(views[view] ?? views.map)()}</div>
      ${selected && html`<${Details} id=${selected} close=${close} theme=${theme} confirm=${setConfirmed} />`}
    </main>
    <footer aria-live="polite">
      ${connection.base !== connection.home && html`<p class="alarm" role="alert">The member that served this page does not answer:
        ${connection.base} is asked instead. Pages that others serve: <${Pages} /></p>`}
      ${connection.base === connection.home && failures.shards && html`<p>Pages of other members: <${Pages} /></p>`}
      ${alarms.map(([key, error]) => html`<p class="alarm" role="alert" key=${key}>${key}: ${reasonOf(error)}</p>`)}
      <span class="faint">${shownRows.length} of ${cluster.shards.size} shards</span>
      <span class="id" id="pointed">${describe(pointed)}</span></footer>
    <${TokenDialog} asked=${asked} />
    <${ConfirmDialog} asked=${confirmed} close=${() => setConfirmed(null)} />
    <${HelpDialog} isOpen=${helps} close=${() => setHelps(false)} />
  </div>`;
}

render(html`<${Page} />`, document.getElementById("page"));
