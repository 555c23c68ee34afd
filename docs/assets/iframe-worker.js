// Search in pages that are opened as files. Browsers start no worker from a file, so the script of the search's worker
// runs in a hidden frame, with the three functions of a worker that it uses. The name
// of this file tells the plugin `offline` not to load another one from a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source === inside) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      inside.postMessage = (data) => window.dispatchEvent(new MessageEvent("message", { data, source: inside }));
      // The search awaits this promise.
      inside.importScripts = async (...urls) => {
        for (const source of urls) await this.#run(inside, source);
      };
      this.frame = frame;
      this.started = this.#run(inside, url);
    }

    #run(inside, source) {
      return new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        Object.assign(script, { src: source, onload: resolve, onerror: reject });
        inside.document.body.append(script);
      });
    }

    async postMessage(data) {
      await this.started;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
