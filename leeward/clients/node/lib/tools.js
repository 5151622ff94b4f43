'use strict';
/* The commands of a WorkdirSandbox, in the order of the documentation. */
module.exports = Object.freeze((
  'cat head tail touch tee grep rg find tree sed sort uniq cut tr wc awk tac rev nl paste comm join fold column expand'
  + ' unexpand strings od jq diff patch base64 sha256sum sha1sum md5sum xxd ls mkdir cp mv rm du ln stat readlink rmdir'
  + ' split file tar gzip zip unzip git node curl echo printf env xargs basename dirname seq sleep which whoami hostname'
  + ' printenv date expr true false test [ sh bash').split(' '));
