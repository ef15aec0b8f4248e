// One line for each check, in the words that every client here uses: `ok`, `FAIL`, `not offered`.

export class Checks {
  #peer;
  #failed = 0;
  #passed = 0;

  constructor(peer) {
    this.#peer = peer;
  }

  /** Runs one check, which gives back what it saw, or throws. It may take half a minute. */
  async run(name, check) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error("took more than 30 s")), 30_000);
    });
    try {
      const seen = await Promise.race([check(), late]);
      this.#passed += 1;
      console.log(`ok ${name}: ${seen}`);
    } catch (error) {
      this.#failed += 1;
      console.log(`FAIL ${name}: ${error?.message ?? error}`);
    } finally {
      clearTimeout(timer);
    }
  }

  notOffered(name, why) {
    console.log(`not offered ${name} by ${this.#peer}: ${why}`);
  }

  /** Ends the process: nonzero when a check failed, or none passed. */
  end() {
    process.exit(this.#failed > 0 || this.#passed === 0 ? 1 : 0);
  }
}

export function must(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

export function textOf(result) {
  return (result?.content ?? []).map((block) => block.text ?? "").join(" ");
}
