/* A hostile daemon from connect to disconnect: its bytes, its descriptors, its silences.
 *
 * libFuzzer calls this with 16 bytes that say how the kernel behaves and then all that the
 * daemon sends. The kernel is played here, with a clock of its own, so that a deadline
 * costs nothing and every promise can be looked at:
 *
 *	nothing is mapped whose seals and size weren't asked for and right;
 *	every descriptor is closed once, none twice, none left;
 *	a call with a deadline ends by it.
 *
 * The rest is what ASan and UBSan see. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "leeward.h"
#include "read_result.h"

enum { SCRIPT = 16, SOCKET = 3, FIRST_FILE = 100, FILES = 512, FOLDER = 50, FOLDERS = 4 };

/* A script that ends so is of a live sandbox. */
#define OF_A_SANDBOX 0x0a
/* And so of one with folders of the host's. */
#define OF_FOLDERS 0x0b

/* Seconds that each call of the kernel takes: what turns in a circle ends by a deadline. */
#define TICK_S 0.05
/* Seconds that a deadline may be missed by: a few calls of the kernel. */
#define GRACE_S 2.0

enum ending { CLOSED, RESET, SILENT, ENDINGS };

static struct {
	const uint8_t *script, *stream;
	size_t at, left;
	enum ending ending;
	double now;
	bool connected;
	struct {
		bool open, asked_seals, asked_size;
		int seals;
		off_t size;
	} files[FILES];
	int file_count, folder_count;
	bool folders[FOLDERS]; /* open */
} host;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PROMISE(promise)                                                                         \
	do {                                                                                     \
		if (!(promise))                                                                  \
			abort();                                                                 \
	} while (0)

/* The next byte of the script, which begins again when it is over. */
static unsigned choice(void)
{
	host.now += TICK_S;
	return host.script[host.at++ % SCRIPT];
}

/* --- the kernel --------------------------------------------------------------- */

int fake_socket(int domain, int type, int protocol)
{
	(void)domain, (void)type, (void)protocol;
	PROMISE(!host.connected);
	host.connected = true;
	return SOCKET;
}

int fake_connect(int fd, const struct sockaddr *address, socklen_t length)
{
	(void)address, (void)length;
	PROMISE(fd == SOCKET && host.connected);
	errno = ECONNREFUSED;
	return choice() == 0xff ? -1 : 0;
}

int fake_setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
	(void)fd, (void)level, (void)option, (void)value, (void)length;
	return 0;
}

int fake_getsockopt(int fd, int level, int option, void *value, socklen_t *length)
{
	struct ucred peer = {.uid = geteuid()};

	(void)fd, (void)level, (void)option;
	PROMISE(*length == sizeof peer);
	memcpy(value, &peer, sizeof peer);
	return 0;
}

ssize_t fake_send(int fd, const void *data, size_t length, int flags)
{
	unsigned how = choice();

	PROMISE(fd == SOCKET && host.connected && data && flags & MSG_NOSIGNAL);
	if ((how & 0xe0) == 0xe0) {
		errno = how & 1 ? EAGAIN : EPIPE;
		return -1;
	}
	return (how & 0xe0) == 0xc0 && length > 1 ? (ssize_t)(length / 2) : (ssize_t)length;
}

/* Puts *count* files beside the bytes of a read, as far as there is room. */
static void pass_files(struct msghdr *message, unsigned count)
{
	static const off_t SIZES[] = {100, 16, 4096, 1};
	static const int SEALS[] = {F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE,
				    F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_GROW | F_SEAL_WRITE, F_SEAL_SHRINK | F_SEAL_WRITE};
	struct cmsghdr *part = CMSG_FIRSTHDR(message);
	size_t sent = 0;

	PROMISE(part && message->msg_controllen >= CMSG_SPACE(count * sizeof(int)));
	for (; count && host.file_count < FILES; count--) {
		unsigned how = choice();
		int fd = FIRST_FILE + host.file_count;

		host.files[host.file_count].open = true;
		host.files[host.file_count].size = SIZES[how >> 4 & 3];
		/* Nearly all are as they should be, else no result would ever be read. */
		host.files[host.file_count++].seals = how & 0x80 ? (how & 0x40 ? -1 : SEALS[how & 3]) : SEALS[0];
		memcpy(CMSG_DATA(part) + sent++ * sizeof fd, &fd, sizeof fd);
	}
	*part = (struct cmsghdr){.cmsg_len = CMSG_LEN(sent * sizeof(int)), .cmsg_level = SOL_SOCKET,
				 .cmsg_type = SCM_RIGHTS};
	message->msg_controllen = sent ? CMSG_SPACE(sent * sizeof(int)) : 0;
}

/* Bytes that a read brings by its choice: all, some, or just the next frame. */
static size_t read_length(unsigned how)
{
	const uint8_t *at = host.stream;

	if (how & 15 && (how & 15) < 15)
		return (how & 15) * 8;
	if (!(how & 15) || host.left < 4)
		return host.left;
	return ((size_t)at[0] << 24 | (size_t)at[1] << 16 | (size_t)at[2] << 8 | at[3]) + 4;
}

ssize_t fake_recvmsg(int fd, struct msghdr *message, int flags)
{
	unsigned how = choice(), files = how >> 4 & 3; /* 3 stands for as many as a read can bring */
	size_t length = message->msg_iov->iov_len;

	PROMISE(fd == SOCKET && host.connected && length);
	message->msg_flags = 0;
	if (!host.left && host.ending == CLOSED) {
		message->msg_controllen = 0;
		return 0;
	}
	if (!host.left && host.ending == RESET) {
		errno = ECONNRESET;
		return -1;
	}
	if (!host.left || how == 0xfe) {
		host.now += flags & MSG_DONTWAIT ? 0 : 10;
		errno = how == 0xfe ? EINTR : EAGAIN;
		return -1;
	}
	if (length > read_length(how))
		length = read_length(how);
	if (length > host.left)
		length = host.left;
	memcpy(message->msg_iov->iov_base, host.stream, length);
	host.stream += length;
	host.left -= length;
	if (how >= 0xf0)
		message->msg_flags = MSG_CTRUNC;
	if (files)
		pass_files(message, files == 3 ? 16 : files);
	else
		message->msg_controllen = 0;
	return (ssize_t)length;
}

int fake_ppoll(struct pollfd *polled, nfds_t count, const struct timespec *time, const sigset_t *mask)
{
	PROMISE(count == 1 && polled->fd == SOCKET && host.connected && time->tv_sec >= 0 && !mask);
	PROMISE(time->tv_nsec >= 0 && time->tv_nsec < 1000000000);
	choice();
	if (!host.left && host.ending == SILENT) {
		host.now += (double)time->tv_sec + (double)time->tv_nsec / 1e9;
		return 0;
	}
	polled->revents = polled->events;
	return 1;
}

int fake_clock_gettime(clockid_t clock, struct timespec *ret_now)
{
	(void)clock;
	*ret_now = (struct timespec){.tv_sec = (time_t)host.now,
				     .tv_nsec = (long)((host.now - (double)(time_t)host.now) * 1e9)};
	return 0;
}

static int file_of(int fd)
{
	PROMISE(fd >= FIRST_FILE && fd < FIRST_FILE + host.file_count && host.files[fd - FIRST_FILE].open);
	return fd - FIRST_FILE;
}

int fake_fcntl(int fd, int command, ...)
{
	int file = file_of(fd);

	PROMISE(command == F_GET_SEALS);
	host.files[file].asked_seals = true;
	return host.files[file].seals;
}

static bool is_folder(int fd)
{
	PROMISE(fd < FOLDER || fd >= FIRST_FILE || host.folders[fd - FOLDER]);
	return fd >= FOLDER && fd < FIRST_FILE;
}

int fake_open(const char *path, int flags, ...)
{
	PROMISE(*path && flags & O_PATH && flags & O_CLOEXEC && host.folder_count < FOLDERS);
	host.folders[host.folder_count] = true;
	return FOLDER + host.folder_count++;
}

ssize_t fake_readlink(const char *path, char *ret_target, size_t size)
{
	PROMISE(!strncmp(path, "/proc/self/fd/", 14) && size > 2);
	memcpy(ret_target, "/f", 2);
	return 2;
}

/* To the socket of a dock. */
ssize_t fake_sendmsg(int fd, const struct msghdr *message, int flags)
{
	struct cmsghdr *part = CMSG_FIRSTHDR(message);

	PROMISE(host.files[file_of(fd)].seals == -1 && flags & MSG_NOSIGNAL && flags & MSG_DONTWAIT);
	PROMISE(part && part->cmsg_len == CMSG_LEN((size_t)host.folder_count * sizeof(int)));
	errno = EPIPE;
	return choice() & 0x40 && choice() == 0x7f ? -1 : 1;
}

int fake_fstat(int fd, struct stat *ret_about)
{
	int file;

	memset(ret_about, 0, sizeof *ret_about);
	if (is_folder(fd)) {
		ret_about->st_mode = fd & 1 ? S_IFREG : S_IFDIR;
		return 0;
	}
	file = file_of(fd);
	host.files[file].asked_size = true;
	ret_about->st_mode = host.files[file].seals == -1 ? S_IFSOCK : S_IFREG;
	ret_about->st_size = host.files[file].size;
	return 0;
}

void *fake_mmap(void *start, size_t length, int protection, int flags, int fd, off_t offset)
{
	int file = file_of(fd), final = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

	PROMISE(!start && !offset && protection == PROT_READ && flags == MAP_SHARED);
	PROMISE(host.files[file].asked_seals && host.files[file].asked_size);
	PROMISE((host.files[file].seals & final) == final && (size_t)host.files[file].size == length);
	/* Of just that size, so that ASan sees a place outside. */
	start = choice() == 0xfd ? NULL : calloc(1, length);
	return start ? start : MAP_FAILED;
}

int fake_munmap(void *start, size_t length)
{
	(void)length;
	free(start);
	return 0;
}

int fake_close(int fd)
{
	if (fd == SOCKET) {
		PROMISE(host.connected);
		host.connected = false;
	} else if (is_folder(fd)) {
		host.folders[fd - FOLDER] = false;
	} else {
		host.files[file_of(fd)].open = false;
	}
	return 0;
}

/* --- the program that uses the library ---------------------------------------- */

static void check_result(const leeward_result *result)
{
	if (!result) {
		PROMISE(leeward_last_error_code() < 0 && *leeward_last_error());
		return;
	}
	PROMISE(result->outcome >= LEEWARD_FINISHED && result->outcome <= LEEWARD_INTERNAL && result->id > 0);
	PROMISE(result->exit_code >= 0 && result->exit_code <= 255);
	read_result(result);
}

static void read_and_free(leeward_result *result)
{
	check_result(result);
	leeward_free_result(result);
}

static void read_sandboxes(leeward_sandboxes *list)
{
	for (size_t i = 0; list && i < list->count; i++) {
		PROMISE(strlen(list->sandboxes[i]->id) == 26);
		read_text(list->sandboxes[i]->profile);
		for (size_t j = 0; j < 2 * list->sandboxes[i]->metadata_count; j++)
			read_text(list->sandboxes[i]->metadata[j]);
	}
	leeward_free_sandboxes(list);
}

static void read_entries(leeward_entries *list, bool sorted)
{
	for (size_t i = 0; list && i < list->count; i++) {
		PROMISE(list->entries[i]->kind >= LEEWARD_KIND_FILE && list->entries[i]->kind <= LEEWARD_KIND_OTHER);
		PROMISE(!sorted || !i || strcmp(list->entries[i - 1]->name, list->entries[i]->name) < 0);
		read_text(list->entries[i]->name);
		read_text(list->entries[i]->target);
	}
	leeward_free_entries(list);
}

static void read_found(leeward_names *names, leeward_matches *matches)
{
	for (size_t i = 0; names && i < names->count; i++)
		read_text(names->names[i]);
	for (size_t i = 0; matches && i < matches->count; i++) {
		read_text(matches->matches[i]->path);
		read_bytes(matches->matches[i]->text, matches->matches[i]->length + 1);
	}
	leeward_free_names(names);
	leeward_free_matches(matches);
}

static int see(void *context, const leeward_chunk *chunk)
{
	int64_t *last = context;

	PROMISE(chunk->number > *last && (chunk->stream == 1 || chunk->stream == 2));
	*last = chunk->number;
	read_bytes(chunk->data, chunk->length);
	return 0;
}

/* A live sandbox, of whatever the daemon says; each answer may be that of the call before. */
static void use_sandbox(leeward_handle *handle)
{
	const leeward_program program = {.shell = "x"};
	leeward_sandbox *box = leeward_sandbox_open(handle, NULL);
	leeward_content *content;
	int64_t process, after = 0, last = 0;

	if (!box)
		box = leeward_sandbox_attach(handle, "aaaaaaaaaaaaaaaaaaaaaaaaaa");
	if (!box)
		return;
	process = leeward_process_start(box, &program);
	PROMISE(process);
	process = process > 0 ? process : 1;
	leeward_process_read(box, process, &after, 1, see, &last);
	leeward_process_write(box, process, "x", 1);
	read_and_free(leeward_process_wait(box, process, 1));
	read_and_free(leeward_sandbox_run(box, &program));
	read_and_free(leeward_sandbox_execute(box, 0, "x", 1, NULL));
	content = leeward_file_read(box, "x", 1 << 20);
	if (content) {
		PROMISE(content->length <= 1 << 20);
		read_bytes(content->data, content->length);
	}
	leeward_free_content(content);
	leeward_file_write(box, "x", "y", 1, -1);
	read_entries(leeward_file_list(box, "x"), true);
	read_entries(leeward_file_stat(box, "x", 0), false);
	read_found(leeward_file_glob(box, "x", "*", 0), leeward_file_grep(box, "x", "y", NULL, 0, 0));
	leeward_file_edit(box, "x", "a", 1, "b", 1);
	leeward_file_copy(box, "x", "y");
	read_sandboxes(leeward_sandbox_list(handle));
	leeward_sandbox_kill(box);
	leeward_sandbox_detach(box);
}

static void use_folders(leeward_handle *handle)
{
	const leeward_mount mounts[] = {{"/a", "/workspace", 1, 0}, {"/b", "/b/", 0, 1}};
	const leeward_sandbox_options options = {.size = sizeof options, .mounts = mounts, .mount_count = 2};

	leeward_sandbox_detach(leeward_sandbox_open(handle, &options));
	for (int i = 0; i < host.folder_count; i++)
		PROMISE(!host.folders[i]);
}

static void use(leeward_handle *handle)
{
	const leeward_options options = {.deadline = 3};
	double start = host.now;
	leeward_result *kept;
	int64_t id;

	leeward_submit(handle, "1", 1, &options);
	id = leeward_submit(handle, "2", 1, &options);
	PROMISE(host.now - start <= 6 + 2 * GRACE_S);
	if (id > 0)
		leeward_cancel(handle, id);
	start = host.now;
	read_and_free(leeward_wait(handle, NULL, 1));
	PROMISE(host.now - start <= 1 + GRACE_S);
	start = host.now;
	read_text(leeward_status(handle, 2));
	leeward_ping(handle, 2);
	PROMISE(host.now - start <= 4 + 2 * GRACE_S);
	start = host.now;
	read_and_free(leeward_execute(handle, "3", 1, &options));
	PROMISE(host.now - start <= 3 + GRACE_S);
	kept = leeward_wait(handle, NULL, -1); /* without a deadline: silence ends it */
	leeward_disconnect(handle);
	read_and_free(kept); /* it outlives its handle */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	leeward_handle *handle;

	if (size < SCRIPT)
		return 0;
	memset(&host, 0, sizeof host);
	host.script = data;
	host.stream = data + SCRIPT;
	host.left = size - SCRIPT;
	host.ending = data[0] % ENDINGS;
	host.now = 1;
	handle = leeward_connect("/socket");
	if (handle && data[SCRIPT - 1] == OF_A_SANDBOX) {
		use_sandbox(handle);
		leeward_disconnect(handle);
	} else if (handle && data[SCRIPT - 1] == OF_FOLDERS) {
		use_folders(handle);
		leeward_disconnect(handle);
	} else if (handle) {
		use(handle);
	}
	PROMISE(!host.connected);
	for (int i = 0; i < host.file_count; i++)
		PROMISE(!host.files[i].open);
	return 0;
}
