// Browsers start no web worker in a page that was opened from disk. The search of these pages runs in one, so here is
// a stand-in: a hidden frame runs the worker's script, and messages pass between the frame and the page.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      const page = window;
      this.loaded = new Promise((resolve) => {
        const script = this.inside.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        // Within the worker's script, `postMessage` answers the page.
        this.inside.postMessage = (data) => {
          const message = new page.MessageEvent("message", { data });
          page.setTimeout(() => this.dispatchEvent(message));
        };
        this.inside.document.body.append(script);
      });
    }
    postMessage(data) {
      const { inside } = this;
      this.loaded.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
