/* Which socket a client connects to, if the caller names none.
 *
 * leeward/spec/paths.py is the same in Python; tests/unit/client/test_c_place.py compares. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "fault.h"
#include "leeward.h"
#include "connection.h"

#define SYSTEM_FILE "/etc/leeward/leeward.toml"
#define USER_FILE ".config/leeward/config.toml"
/* Bytes; a configuration has some hundred lines at most. */
#define MAX_FILE ((size_t)1 << 20)
#define ACCESS_LIST "system.posix_acl_access"
/* The owner that files have, in a user namespace, whose real owner isn't one of its users. */
#define OVERFLOW_ID 65534

/* The default socket, malloc'ed. */
static char *default_socket(void)
{
	uid_t uid = geteuid();
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char folder[64], *path = NULL;

	if (uid == 0)
		return strdup("/run/leeward/leeward.sock");
	if (!runtime || runtime[0] != '/') {
		snprintf(folder, sizeof folder, "/run/user/%lu", (unsigned long)uid);
		runtime = folder;
		if (access(runtime, W_OK | X_OK))
			return asprintf(&path, "/tmp/leeward-%lu/leeward.sock", (unsigned long)uid) < 0 ? NULL : path;
	}
	return asprintf(&path, "%s/leeward/leeward.sock", runtime) < 0 ? NULL : path;
}

static int refuse(const char *file, const char *why)
{
	char shown[1024];

	snprintf(shown, sizeof shown, "%s", file);
	return lw_fail(LEEWARD_INVALID, "%s: %s", shown, why);
}

/* The value of a decimal field; -1 for none. */
static long long number(const char *field)
{
	char *end;
	long long found;

	if (!field || *field < '0' || *field > '9')
		return -1;
	found = strtoll(field, &end, 10);
	return *end ? -1 : found;
}

/* Count the lines of *file*, as passwd(5) or group(5), whose field *place* is *group*, and those of them that are about
 * *user* alone: by its number in the field before, or by its name and its members. -1 where the file can't be read. */
static int count_lines(const char *file, int place, gid_t group, uid_t uid, char name[64], int *ret_own)
{
	FILE *opened = fopen(file, "re");
	char *line = NULL;
	size_t room = 0;
	int count = 0;

	if (!opened)
		return -1;
	while (getline(&line, &room, opened) > 0) {
		char *rest = line, *field[4] = { NULL };

		line[strcspn(line, "\n")] = 0;
		for (int at = 0; at < 4; at++)
			field[at] = strsep(&rest, ":");
		if (number(field[place]) != (long long)group)
			continue;
		count++;
		if (place == 3) {
			*ret_own += number(field[2]) == (long long)uid;
			snprintf(name, 64, "%s", field[0]);
		} else {
			*ret_own += !strcmp(field[0], name) && (!field[3] || !*field[3] || !strcmp(field[3], name));
		}
	}
	free(line);
	fclose(opened);
	return count;
}

/* Whether *group* has its owner alone, as leeward/spec/writers.py decides: it is the owner's primary group, has the
 * owner's name, and no other member. */
static int group_is_private(gid_t group, uid_t owner)
{
	char name[64] = "";
	int users = 0, groups = 0;

	return count_lines("/etc/passwd", 3, group, owner, name, &users) == 1 && users == 1 &&
	       count_lines("/etc/group", 2, group, owner, name, &groups) == 1 && groups == 1;
}

/* Whether others than its owner and root can write to what *about* tells of. *list* is what getxattr(2) has said of its
 * access list. */
static bool others_write(const struct stat *about, ssize_t list)
{
	bool is_plain = list < 0 && (errno == ENODATA || errno == EOPNOTSUPP);

	return about->st_mode & S_IWOTH ||
	       (about->st_mode & S_IWGRP && !(is_plain && group_is_private(about->st_gid, about->st_uid)));
}

/* Whether others than root and this user can put another file in the place of *path*: `distrust` in
 * leeward/spec/writers.py. *path* is absolute; it is cut. */
static bool others_replace(char *path)
{
	struct stat about;
	char *slash;

	while ((slash = strrchr(path, '/'))) {
		slash[slash == path] = 0;
		if (stat(path, &about) || (about.st_uid && about.st_uid != geteuid() && about.st_uid != OVERFLOW_ID))
			return true;
		if (!(about.st_mode & S_ISVTX) && others_write(&about, getxattr(path, ACCESS_LIST, NULL, 0)))
			return true;
		if (slash == path)
			return false;
	}
	return true;
}

/* Why the configuration *file*, open as *fd*, isn't taken; NULL if it is. */
static const char *objection(const char *file, int fd)
{
	char folder[PATH_MAX];
	struct stat about;

	if (fstat(fd, &about) || !S_ISREG(about.st_mode) || (about.st_uid && about.st_uid != geteuid()))
		return "must be a regular file of yours or root's";
	if (others_write(&about, fgetxattr(fd, ACCESS_LIST, NULL, 0)))
		return "others can write it; chmod go-w the file";
	if (!realpath(file, folder) || others_replace(folder))
		return "others can put another file in its place; chmod go-w its folders";
	return (size_t)about.st_size > MAX_FILE ? "is larger than 1048576 bytes" : NULL;
}

/* Read a configuration file, which must belong to us or to root. *ret_content stays NULL if it doesn't exist or isn't
 * readable. */
static int read_file(const char *file, char **ret_content, size_t *ret_length)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	const char *wrong;
	ssize_t got = 0;

	if (fd < 0)
		return errno == ELOOP ? refuse(file, "is a symbolic link; name the file itself") : LEEWARD_OK;
	wrong = objection(file, fd);
	*ret_content = wrong ? NULL : malloc(MAX_FILE);
	if (*ret_content)
		do
			got = read(fd, *ret_content, MAX_FILE);
		while (got < 0 && errno == EINTR);
	close(fd);
	*ret_length = got > 0 ? (size_t)got : 0;
	if (wrong)
		return refuse(file, wrong);
	return *ret_content ? LEEWARD_OK : lw_fail_no_memory();
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

/* Whether *word* is the key, bare or in quotes. */
static bool is_key(const char *word, size_t length)
{
	return (length == 6 && !memcmp(word, "socket", 6)) ||
	       (length == 8 && (!memcmp(word, "\"socket\"", 8) || !memcmp(word, "'socket'", 8)));
}

/* Read the quoted value of a line from *at* to *end*, behind the equals sign: where it begins, and its length. */
static bool read_value(const char *at, const char *end, const char **ret_value, size_t *ret_length)
{
	const char *closed;
	char quote;

	while (at < end && is_blank(*at))
		at++;
	if (at == end || (*at != '"' && *at != '\''))
		return false;
	quote = *at++;
	closed = memchr(at, quote, (size_t)(end - at));
	if (!closed || (closed > at && *at != '/'))
		return false;
	for (const char *each = at; each < closed; each++)
		if ((unsigned char)*each < 32 || *each == 127 || (quote == '"' && *each == '\\'))
			return false;
	*ret_value = at;
	*ret_length = (size_t)(closed - at);
	do
		closed++;
	while (closed < end && is_blank(*closed));
	return closed == end || *closed == '#';
}

/* Find the key `socket` before the first table of a TOML text. Returns 1 and its value; 0 if it is missing; -1 if its
 * value isn't an absolute path in plain quotes. Pure. */
int lw_place_named(const char *content, size_t length, const char **ret_value, size_t *ret_length)
{
	const char *at = content, *stop = content + length;

	while (at < stop) {
		const char *end = memchr(at, '\n', (size_t)(stop - at)), *next = end ? end + 1 : stop, *equals, *key;

		end = end ? end : stop;
		while (at < end && (is_blank(*at) || *at == '\r'))
			at++;
		while (end > at && (is_blank(end[-1]) || end[-1] == '\r'))
			end--;
		if (at < end && *at == '[')
			return 0;
		equals = at < end ? memchr(at, '=', (size_t)(end - at)) : NULL;
		for (key = equals; key && key > at && is_blank(key[-1]);)
			key--;
		if (equals && is_key(at, (size_t)(key - at)))
			return read_value(equals + 1, end, ret_value, ret_length) ? 1 : -1;
		at = next;
	}
	return 0;
}

/* Read the socket from *file* into *ret_path, malloc'ed; NULL if the file names none.
 *
 * *ret_said: whether the file has the key, with any value. */
static int from_file(const char *file, char **ret_path, bool *ret_said)
{
	const char *value;
	char *content = NULL;
	size_t length;
	int failed = read_file(file, &content, &length), found;

	if (failed || !content)
		return failed;
	found = lw_place_named(content, length, &value, &length);
	if (found < 0)
		failed = refuse(file, "socket: clients read an absolute path in plain quotes, \"/run/x.sock\", on one line");
	*ret_said = found > 0;
	if (found > 0 && length) {
		*ret_path = strndup(value, length);
		if (!*ret_path)
			failed = lw_fail_no_memory();
	}
	free(content);
	return failed;
}

static int from_files(char **ret_path)
{
	const char *home = secure_getenv("HOME");
	struct stat about;
	bool said = false;
	int failed = LEEWARD_OK;
	char *file;

	if (home && home[0] == '/' && !stat(home, &about) && about.st_uid == geteuid()) {
		if (asprintf(&file, "%s/" USER_FILE, home) < 0)
			return lw_fail_no_memory();
		failed = from_file(file, ret_path, &said);
		free(file);
	}
	return failed || said ? failed : from_file(SYSTEM_FILE, ret_path, &said);
}

/* The socket of a client that was given *path*: that, else LEEWARD_SOCKET, else the user's configuration file, else the
 * system's, else the default. A URL is refused, and so is LEEWARD_HOST without a path. Returns a leeward_error; *ret_path is
 * malloc'ed. */
int lw_place(const char *path, char **ret_path)
{
	const char *host = path && *path ? strstr(path, "://") : getenv("LEEWARD_HOST");
	int failed;

	*ret_path = NULL;
	if (host && *host)
		return lw_fail(LEEWARD_INVALID, "a daemon on another machine is reached by Python, Node and the command line");
	if (!path || !*path)
		path = getenv("LEEWARD_SOCKET");
	if (path && *path) {
		*ret_path = strdup(path);
	} else {
		failed = from_files(ret_path);
		if (failed)
			return failed;
		if (!*ret_path)
			*ret_path = default_socket();
	}
	return *ret_path ? LEEWARD_OK : lw_fail_no_memory();
}
