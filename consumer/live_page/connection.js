// Requests to the member that served the page, or to another if that does not answer: its REST gateway, with the
// caller's token.
//
// The token goes to members alone: to the origin of the page, and to those that a member told of in its list of the
// cluster. The page's policy, which its member wrote when the page was opened, holds the browser to the same origins.

const TOKEN_KEY = "broadsheet.token";
const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 15_000;
/** A member that says nothing for so long is taken for dead: its machine may be gone without a word. */
const ANSWER_MS_MAX = 20_000;

export class CallError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** A member did not answer at all: another may. */
class SilenceError extends CallError {
  constructor(base, error) {
    super(0, `${new URL(base).host} does not answer (${error.message || error})`);
  }
}

/** One token: kept for the tab, and asked for when a request is refused without it. */
export class Connection {
  /**
   * @param {() => Promise<string>} askForToken Called once, however many requests wait for a token.
   * @param {() => string[]} peers Returns the URLs of the admin ports that members announced.
   * @param {() => void} onMoved Called when another member is asked from now on.
   */
  constructor(askForToken, peers = () => [], onMoved = () => {}) {
    this.askForToken = askForToken;
    this.peers = peers;
    this.onMoved = onMoved;
    this.home = new URL(".", document.baseURI).href;
    /** Where requests go at present. */
    this.base = this.home;
    /** Members that were tried since one answered. */
    this.tried = 0;
    this.watching = null;
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

  /** The page's own member, and the others, each once. */
  #bases() {
    const others = this.peers().map((url) => new URL("/", url).href);
    return [...new Set([this.home, ...others])];
  }

  /** Ask another member from now on, unless that has happened already: `from` did not answer. */
  #moveOn(from) {
    if (from !== this.base) return;
    const bases = this.#bases();
    this.base = bases[(bases.indexOf(from) + 1) % bases.length];
    this.tried += 1;
    this.watching?.abort();
    if (this.base !== from) this.onMoved();
  }

  /** Whether every member was tried in vain: then it is time for a pause. */
  get #hasTriedAll() {
    return this.tried % Math.max(1, this.#bases().length) === 0;
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
        this.watching = new AbortController();
        const answer = await this.#fetch("v1/shards/watch", { headers }, this.watching);
        onState(null);
        for await (const event of events(answer.body)) {
          const data = JSON.parse(event.data);
          if (event.name === "error") throw new CallError(0, data.message ?? event.data);
          onPart(data);
          // Any member goes on from there: the id is a revision of etcd.
          if (event.id) lastId = event.id;
          pause = RETRY_MS_MIN;
        }
        onState(new CallError(0, "the member ended the stream; trying again"));
      } catch (error) {
        onState(error);
        if (error instanceof SilenceError && !this.#hasTriedAll) continue;
      }
      await new Promise((resolve) => setTimeout(resolve, pause * (0.75 + Math.random() / 2)));
      pause = Math.min(2 * pause, RETRY_MS_MAX);
    }
  }

  async #fetch(path, options, stream = null) {
    for (;;) {
      const token = this.token;
      const headers = { ...options.headers };
      if (token) headers.Authorization = `Bearer ${token}`;
      const answer = await this.#ask(this.base, path, { ...options, headers }, stream);
      if (answer.ok) return answer;
      if (answer.status !== 401) throw await errorOf(answer);
      const refusal = await errorOf(answer);
      // Another request may have got a token while this one, or the text of its refusal, was under way.
      if (token === this.token) await this.#askOnce(refusal.message, token !== "");
    }
  }

  /** Send a request; a member that does not begin to answer in time is not asked again. */
  async #ask(base, path, options, stream) {
    const controller = stream ?? new AbortController();
    const deadline = setTimeout(() => controller.abort(new Error(`nothing for ${ANSWER_MS_MAX / 1000} s`)), ANSWER_MS_MAX);
    try {
      const answer = await fetch(new URL(path, base), { ...options, signal: controller.signal, cache: "no-store" });
      this.tried = 0;
      return answer;
    } catch (error) {
      this.#moveOn(base);
      throw new SilenceError(base, error);
    } finally {
      clearTimeout(deadline);
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
