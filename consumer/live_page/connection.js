// Requests to the member that served the page: its REST gateway, with the caller's token.

const TOKEN_KEY = "broadsheet.token";
const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 15_000;

export class CallError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** One origin, one token: kept for the tab, and asked for when a request is refused without it. */
export class Connection {
  /** @param {() => Promise<string>} askForToken Called once, however many requests wait for a token. */
  constructor(askForToken) {
    this.askForToken = askForToken;
    this.token = sessionStorage.getItem(TOKEN_KEY) ?? "";
    this.asking = null;
  }

  forgetToken() {
    this.token = "";
    sessionStorage.removeItem(TOKEN_KEY);
  }

  /** Call a method, e.g. "allocation/plan", with a message as proto JSON. */
  async call(method, message = {}) {
    const answer = await this.#fetch(`v1/${method}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(message),
    });
    return answer.json();
  }

  /** Return the JSON at a path of the port. */
  async get(path) {
    return (await this.#fetch(path, {})).json();
  }

  /**
   * Follow the table of shards for ever: `onPart` gets each response, `onState` "live" or an error.
   * After a break, the stream goes on from the last complete response.
   */
  async watch(onPart, onState) {
    let lastId = "";
    let pause = RETRY_MS_MIN;
    for (;;) {
      try {
        const headers = { Accept: "text/event-stream" };
        if (lastId) headers["Last-Event-ID"] = lastId;
        const answer = await this.#fetch("v1/shards/watch", { headers });
        onState(null);
        for await (const event of events(answer.body)) {
          const data = JSON.parse(event.data);
          if (event.name === "error") throw new CallError(0, data.message ?? event.data);
          onPart(data);
          if (event.id) lastId = event.id;
          pause = RETRY_MS_MIN;
        }
        onState(new CallError(0, "the member ended the stream; trying again"));
      } catch (error) {
        onState(error);
      }
      await new Promise((resolve) => setTimeout(resolve, pause * (0.75 + Math.random() / 2)));
      pause = Math.min(2 * pause, RETRY_MS_MAX);
    }
  }

  async #fetch(path, options) {
    for (;;) {
      const token = this.token;
      const headers = { ...options.headers };
      if (token) headers.Authorization = `Bearer ${token}`;
      const url = new URL(path, document.baseURI);
      const answer = await fetch(url, { ...options, headers, cache: "no-store" });
      if (answer.ok) return answer;
      if (answer.status !== 401) throw await errorOf(answer);
      // Another request may have got a token while this one was under way.
      if (token === this.token) await this.#askOnce((await errorOf(answer)).message, token !== "");
    }
  }

  #askOnce(reason, wasRefused) {
    this.asking ??= this.askForToken(reason, wasRefused).then((token) => {
      this.token = token;
      sessionStorage.setItem(TOKEN_KEY, token);
      this.asking = null;
    });
    return this.asking;
  }
}

async function errorOf(answer) {
  const text = await answer.text();
  try {
    return new CallError(answer.status, JSON.parse(text).message || answer.statusText);
  } catch {
    return new CallError(answer.status, text.trim() || `HTTP status ${answer.status}`);
  }
}

/** Parse server-sent events. EventSource cannot send a token, so the stream is read by hand. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const event = { id: "", name: "message", data: [] };
      for (const line of block.split(/\r?\n/)) {
        const [, field, text] = /^([^:]*)(?:: ?(.*))?$/.exec(line) ?? [];
        if (field === "data") event.data.push(text ?? "");
        else if (field === "id") event.id = text ?? "";
        else if (field === "event") event.name = text ?? "";
      }
      if (event.data.length) yield { ...event, data: event.data.join("\n") };
    }
  }
}
