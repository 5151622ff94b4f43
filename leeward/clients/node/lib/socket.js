'use strict';
/*
 * Where the daemon's socket is, and whether it is to be trusted. Node can't ask the kernel who is at the other end of a
 * socket. But only who owns a folder (and root) can put a socket there, if nobody else may write to it, and the daemon
 * insists on such a folder: so the owners of the folder and of the socket are looked at.
 */

const fs = require('node:fs');
const path = require('node:path');
const net = require('node:net');
const { DaemonAway } = require('./errors.js');
const remote = require('./remote.js');

const { isHost, hostUrl } = remote;

/** Bytes of a path in sockaddr_un. */
const MAX_PATH = 107;
const CONNECT_MS = 5000;

/** The socket to use: `named`, else LEEWARD_HOST, else LEEWARD_SOCKET, else the default of this user; or a host's URL. */
function socketPath(named, env = process.env, uid = process.geteuid()) {
  if (named || env.LEEWARD_HOST) {
    if (!isHost(named || env.LEEWARD_HOST) && named) return path.resolve(String(named));
    hostUrl(String(named || env.LEEWARD_HOST));
    return String(named || env.LEEWARD_HOST);
  }
  if (env.LEEWARD_SOCKET) return path.resolve(env.LEEWARD_SOCKET);
  if (uid === 0) return '/run/leeward/leeward.sock';
  let runtime = env.XDG_RUNTIME_DIR || '';
  if (!runtime.startsWith('/')) {
    runtime = `/run/user/${uid}`;
    try {
      fs.accessSync(runtime, fs.constants.W_OK | fs.constants.X_OK);
    } catch {
      return `/tmp/leeward-${uid}/leeward.sock`;
    }
  }
  return `${runtime}/leeward/leeward.sock`;
}

function away(where, reason, mayHaveRun = false) {
  if (isHost(where)) return remote.away(where, reason, mayHaveRun);
  return new DaemonAway(`no daemon answers on ${JSON.stringify(where)} (${reason}); start one with \`leeward daemon start\``,
    mayHaveRun);
}

/** Throws DaemonAway where somebody else than root, this user, and LEEWARD_TRUSTED_UID could listen. */
function checkOwner(where, real) {
  const us = process.geteuid();
  if (us === 0) return;
  const trusted = new Set([0, us, process.env.LEEWARD_TRUSTED_UID ? Number(process.env.LEEWARD_TRUSTED_UID) : 0]);
  const folder = fs.statSync(path.dirname(real));
  const socket = fs.statSync(real);
  if (!trusted.has(folder.uid) || folder.mode & 0o022) {
    throw away(where, `its folder is of user ${folder.uid}, or others may write there`);
  }
  if (!trusted.has(socket.uid)) {
    throw away(where, `the socket is of user ${socket.uid}, neither root nor you, nor LEEWARD_TRUSTED_UID`);
  }
}

/** A connected net.Socket; rejects with DaemonAway. */
function connect(where, token) {
  if (isHost(where)) return remote.connect(where, token);
  return new Promise((resolve, reject) => {
    let folder = -1;
    let address;
    try {
      const real = fs.realpathSync(where);
      checkOwner(where, real);
      address = real;
      if (Buffer.byteLength(address) > MAX_PATH) {
        folder = fs.openSync(path.dirname(real), fs.constants.O_RDONLY | fs.constants.O_DIRECTORY);
        address = `/proc/self/fd/${folder}/${path.basename(real)}`;
      }
    } catch (error) {
      if (folder >= 0) fs.closeSync(folder);
      reject(error instanceof DaemonAway ? error : away(where, error.code || error.message));
      return;
    }
    const socket = net.connect({ path: address });
    const done = (error) => {
      clearTimeout(timer);
      if (folder >= 0) fs.closeSync(folder);
      socket.removeAllListeners();
      if (error) {
        socket.on('error', () => {}); // it is over; what comes later is nobody's
        socket.destroy();
        reject(away(where, error.code || error.message));
      } else {
        resolve(socket);
      }
    };
    const timer = setTimeout(() => done(new Error('no program accepted the connection')), CONNECT_MS);
    socket.once('connect', () => done(null));
    socket.once('error', done);
  });
}

module.exports = { socketPath, connect, away };
