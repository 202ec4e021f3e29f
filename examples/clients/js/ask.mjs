// Asks the primary of each key for its state: the table key → group → shard → primary is watched, not asked for again and again.
//
//   printf 'N101\nN102\n' | node ask.mjs http://localhost:9090 'selector=app=flights&rule=modulo'
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { rangeOf } from "./table.mjs";

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export class KeyClient {
  constructor(address, query) {
    Object.assign(this, { address, query, table: null });
    this.follow();
  }

  /** Keeps the table current, at whichever member answers. */
  async follow() {
    for (let turn = 0; ; turn++) {
      const others = this.table?.ranges.map((range) => range.adminEndpoint) ?? [];
      const members = [...new Set([this.address, ...others])].filter(Boolean);
      const silence = new AbortController();
      let timer = setTimeout(() => silence.abort(), 30_000);
      try {
        const answer = await fetch(`${members[turn % members.length]}/v1/keys/watch?${this.query}`, { signal: silence.signal });
        if (!answer.ok) throw new Error(await answer.text());
        let text = "";
        for await (const chunk of answer.body.pipeThrough(new TextDecoderStream())) {
          timer.refresh();
          const events = (text + chunk).split("\n\n");
          text = events.pop();
          for (const event of events) this.table = JSON.parse(event.slice(event.indexOf("data: ") + 6)).table ?? this.table;
        }
      } catch (error) {
        console.error(`watch: ${error.message}`);
      }
      clearTimeout(timer);
      await pause(200);
    }
  }

  /** Asks the primary of a key for its state. Waits while there is none, or the shard is one that gave the key away (409). */
  async ask(key) {
    for (;;) {
      const { shard, primary, adminEndpoint } = (this.table && rangeOf(this.table, key)) ?? {};
      const request = { method: "POST", body: JSON.stringify({ shard, keys: [[key]] }), signal: AbortSignal.timeout(5_000) };
      const response = adminEndpoint && (await fetch(`${adminEndpoint}/v1/keyed/get_keys`, request).catch(() => null));
      const answer = response && (await response.json().catch(() => null));
      if (answer?.status === "OK") return { key, shard, primary, rows: answer.rows, readThrough: answer.state.readThrough };
      if (response?.status === 400 || response?.status === 501) throw new Error(answer?.message);
      await pause(100);
    }
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const client = new KeyClient(process.argv[2], process.argv[3] ?? "");
  for await (const key of createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await client.ask(key).catch((error) => ({ key, error: error.message }))));
  }
  process.exit();
}
