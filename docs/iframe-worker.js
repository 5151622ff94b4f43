// The search of the site, where its pages are read as files: browsers start no worker there, and a frame takes its place.
"use strict";

if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.document.write(`<script src="${encodeURI(decodeURI(url))}"></script>`);
      const script = inside.document.querySelector("script");
      this.ready = new Promise((resolve) => { script.onload = () => resolve(inside); });
      inside.document.close();
    }

    async postMessage(data) { (await this.ready).dispatchEvent(new MessageEvent("message", { data })); }

    terminate() { this.frame.remove(); }
  };
  window.Worker = window.IFrameWorker;
}
