// Read by tsc, never run: what a program in TypeScript writes, and what it must not.
import Workdir, { Busy, Client, DaemonError, Sandbox, WorkdirError } from 'leeward';
import type { Chunk, Result } from 'leeward';

async function jobs(): Promise<number> {
  const client = new Client({ socket: '/s', retryBusy: false });
  const got: Result = await client.execute('print(1)', { files: { a: Buffer.from('x') }, memory: '64M', signal: AbortSignal.timeout(5), deadline: 3 });
  const text: string = got.stdoutText + got.stdout.toString('hex') + (got.error?.type ?? '');
  // @ts-expect-error there is no such option
  await client.execute('1', { tmeout: 3 });
  // @ts-expect-error results are read-only
  got.exitCode = 3;
  client.close();
  return text.length;
}

async function live(): Promise<void> {
  const box = new Sandbox({ mounts: [{ source: '/a', target: '/b', writable: true }], env: new Map([['A', '1']]), showSecrets: false });
  const held = await Sandbox.attach('a', { held: true });
  await held.fetch({ url: 'http://a/', method: 'POST', headers: { b: 'c' }, body: 'd' });
  const process = await box.start(['cat'], { stdin: null });
  for await (const chunk of process) {
    const one: Chunk = chunk;
    if (one.stream === 'stdout') await process.write(one.data);
  }
  const ended: Result = await process.wait();
  const maybe: Result | null = await process.wait({ timeout: 1 });
  const text: string = await box.files.read('f', { encoding: 'utf8', lines: [1, 2] });
  const raw: Buffer = await box.files.read('f');
  for await (const piece of box.files.stream('f')) await box.files.append('g', piece);
  const found = await box.files.glob('*');
  const { kernel } = await box.ask('kernel_open');
  const piece = await box.ask('file_read', { path: Buffer.from('f'), size: 5 });
  // @ts-expect-error it has no such field
  await box.ask('file_mkdir', { parent: true });
  // @ts-expect-error a kernel is named by its number
  await box.ask('kernel_reset', {});
  console.log(kernel, 'errno' in piece ? piece.why : piece.data.length);
  if (found.more) console.log(found[0].length, text, raw, ended.ok, maybe?.ok);
  // @ts-expect-error a line goes to shell
  await box.run('ls -l');
  await box.close();
}

async function folder(): Promise<void> {
  const work = new Workdir({ workDir: '.', timeoutMs: 1000, memoryLimit: '1G', compare: true, protect: true });
  try {
    const got = await work.exec('ls', ['-l'], { onStdout: (data) => console.log(data.length), background: true });
    const text: string = await work.readFile('f', 'utf8');
    console.log(got.ok, text, (await work.listDir())[0].isDir, await Workdir.availableTools());
  } catch (error) {
    if (error instanceof WorkdirError && error.kind === 'timeout') return;
    if (error instanceof Busy) console.log(error.retryAfter);
    if (error instanceof DaemonError) console.log(error.mayHaveRun);
    throw error;
  } finally {
    await work.destroy();
  }
}

export { jobs, live, folder };
