// The server, as the page sees it: calls with a token, and a stream of events that finds its way back after a lost connection.

const TOKEN = "surgicalmamba-token";

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export function setToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export async function call(method, path) {
  const answer = await fetch(path, { method, headers: headers(), cache: "no-store" });
  if (!answer.ok) {
    const about = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, about.detail ?? answer.statusText);
  }
  return answer;
}

export async function get(path) {
  return (await call("GET", path)).json();
}

export async function download(path, name) {
  const content = await (await call("GET", path)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const SILENCE_MS = 15000; // the server sends something every 5 s

// Server-sent events read by fetch, which can send a token. `path()` is asked anew for each attempt, so that a view goes on where it was.
export class Events {
  constructor(path, onMessage, onLink) {
    Object.assign(this, { path, onMessage, onLink, isOver: false });
    this.run();
  }

  close() {
    this.isOver = true;
    this.stop?.abort();
    clearTimeout(this.silence);
  }

  async run() {
    let pause = 250;
    while (!this.isOver) {
      try {
        const path = await this.path();
        if (this.isOver) return;
        this.stop = new AbortController();
        const answer = await fetch(path, { headers: headers(), signal: this.stop.signal, cache: "no-store" });
        if (!answer.ok) throw new Refused(answer.status, answer.statusText);
        this.onLink("live");
        pause = 250;
        await this.read(answer.body.getReader());
      } catch (error) {
        if (this.isOver) return;
        if (error instanceof Refused && [401, 403, 404].includes(error.status)) { this.onLink("refused", error); return; }
      }
      if (this.isOver) return;
      this.onLink("lost");
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(pause * 2, 3000);
    }
  }

  async read(reader) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      clearTimeout(this.silence);
      this.silence = setTimeout(() => this.stop.abort(), SILENCE_MS);
      const { value, done } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const parts = rest.split("\n\n");
      rest = parts.pop();
      for (const part of parts) if (part.startsWith("data: ") && !this.isOver) this.onMessage(JSON.parse(part.slice(6)));
    }
  }
}
