/* Makes a state's copy out of this process: its memory is replaced by that of the state, and it goes on where that stood.
 *
 * Runs in:  a fresh kernel, which has one thread and every lock.
 * Source:   mmap(2), mremap(2), brk(2), rseq(2), set_robust_list(2); mm/mmap.c
 *
 * Theory of operation. While a file is missing, or isn't the one that the state had, this process returns with an error, and
 * nothing has changed. Then the system calls that remain are laid out as rows: what to call, and what it must return. The few
 * instructions that make them, a stack, and the rows lie in a block at an address that is free here and in the state. They
 * unmap everything else, map what the state had, set what the kernel knows of a thread, and jump. A row that fails ends
 * the process, of which nothing is left by then.
 *
 * What this process has mapped as the state had, of the same file and only to be read, stays: with the same zygote that is half
 * of it. Short runs of pages are copied, long ones mapped from the state's file, privately: copies share what they don't write.
 *
 * The addresses of the zygote and of the kernel's own mappings may be other ones than those of the state: its heap is then
 * not where brk(2) would extend it (state_dump.c, resume), and [vdso] is moved. */

#include "state_private.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)

#include "clone.h"

#include <asm/prctl.h>

#define STACK_SIZE (64UL << 10)
/* Runs of fewer pages are copied: a mapping costs more than that. */
#define MAPPED 4UL
#define ANY INT64_MIN
/* In the place of a system call: store a value. */
#define STORE (-1)
#define LOST 70 /* EX_SOFTWARE */
#define TOP 0x7ffffffff000UL
/* Bytes of our own maps that are read, at most. */
#define TEXT (4UL << 20)

struct row {
	int64_t number, arguments[6], wanted, got;
};

struct block {
	uint64_t registers[9];
	uint64_t rows, count;
};

/* The one function that is copied: it calls nothing, and has no data. */
__attribute__((noreturn, noinline, section("lw_state_rows")))
UNCHECKED static void make(struct block *block)
{
	struct row *const rows = (struct row *)block->rows;

	for (uint64_t i = 0; i < block->count; i++) {
		struct row *const row = &rows[i];
		const int64_t *const a = row->arguments;

		if (row->number == STORE) {
			*(volatile int64_t *)a[0] = a[1] ? *(int64_t *)a[1] : a[2];
			continue;
		}
		row->got = raw6(row->number, a[0], a[1], a[2], a[3], a[4], a[5]);
		if (row->wanted != ANY && row->got != row->wanted)
			for (;;)
				raw6(SYS_exit_group, LOST, 0, 0, 0, 0, 0);
	}
	__asm__ volatile("ldmxcsr 64(%0)\n\t"
			 "fldcw 68(%0)\n\t"
			 "mov (%0), %%rbx\n\t"
			 "mov 8(%0), %%rbp\n\t"
			 "mov 16(%0), %%r12\n\t"
			 "mov 24(%0), %%r13\n\t"
			 "mov 32(%0), %%r14\n\t"
			 "mov 40(%0), %%r15\n\t"
			 "mov 48(%0), %%rsp\n\t"
			 "mov $1, %%eax\n\t"
			 "jmp *56(%0)"
			 : : "D"(block->registers) : "memory");
	__builtin_unreachable();
}

extern const char begin[] __asm__("__start_lw_state_rows") __attribute__((visibility("hidden")));
extern const char end[] __asm__("__stop_lw_state_rows") __attribute__((visibility("hidden")));

extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));

struct load {
	int file, memory;
	int64_t word;
	const struct head *head;
	const struct part *parts;
	const struct file *files;
	const struct run *runs;
	const char *names;
	int *opened;
	uint64_t memory_inode;
	bool *kept;            /* of each part: it is mapped here, and stays */
	char *text;            /* of our own maps */
	long length;
	struct block *block;
	uint64_t size;         /* of the block */
	struct row *rows;
	uint64_t count, most;
};

static void row(struct load *load, int64_t wanted, int64_t number, int64_t a, int64_t b, int64_t c, int64_t d, int64_t e,
		int64_t f)
{
	if (load->count < load->most)
		load->rows[load->count] = (struct row){ .number = number, .arguments = { a, b, c, d, e, f }, .wanted = wanted };
	load->count++;
}

static bool within(uint64_t at, uint64_t count, uint64_t each, uint64_t size)
{
	return at <= size && at % 8 == 0 && count <= (size - at) / each;
}

/* Whether the tables are where they can be read, and each number in them is of its table. The rest harms nobody else. */
static bool is_whole(const struct head *head, uint64_t size)
{
	if (head->magic != LW_STATE_MAGIC || head->size > size ||
	    !within(head->parts, head->part_count, sizeof(struct part), size) ||
	    !within(head->files, head->file_count, sizeof(struct file), size) ||
	    !within(head->runs, head->run_count, sizeof(struct run), size) ||
	    head->names > size || head->name_size > size - head->names)
		return false;
	const char *const base = (const char *)head;
	const struct part *const parts = (const struct part *)(base + head->parts);
	const struct file *const files = (const struct file *)(base + head->files);
	for (uint32_t i = 0; i < head->part_count; i++)
		if (parts[i].start >= parts[i].end || (parts[i].start | parts[i].end) % PAGE || parts[i].end > TOP ||
		    (i && parts[i].start < parts[i - 1].end) || (parts[i].kind == OF_FILE && parts[i].file >= head->file_count) ||
		    parts[i].first > head->run_count || parts[i].count > head->run_count - parts[i].first)
			return false;
	for (uint32_t i = 0; i < head->file_count; i++)
		if (files[i].name > head->name_size || files[i].length > head->name_size - files[i].name ||
		    files[i].length >= LW_STATE_NAME * 16)
			return false;
	return true;
}

/* Open the files that the state has mapped. -errno, and the name of the one that is missing; -ESTALE for another one. */
static int open_files(struct load *load, char *ret_name)
{
	char path[LW_STATE_NAME * 16];
	struct stat now;

	for (uint32_t i = 0; i < load->head->file_count; i++) {
		const struct file *const file = &load->files[i];
		memcpy(path, load->names + file->name, file->length);
		path[file->length] = 0;
		const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		int err = fd < 0 ? -errno : fstat(fd, &now) < 0 ? -errno : 0;
		if (!err && (now.st_dev != file->device || now.st_ino != file->inode || (uint64_t)now.st_size != file->size ||
			     (uint64_t)now.st_mtim.tv_sec != file->seconds ||
			     (uint64_t)now.st_mtim.tv_nsec != file->nanoseconds))
			err = -ESTALE;
		load->opened[i] = fd;
		if (err < 0) {
			memcpy(ret_name, path, LW_STATE_NAME - 1);
			ret_name[LW_STATE_NAME - 1] = 0;
			return err;
		}
	}
	return 0;
}

/* Whether none of the state's mappings is between *at* and *end*. */
static bool is_free(const struct load *load, uint64_t at, uint64_t end)
{
	for (uint32_t i = 0; i < load->head->part_count; i++)
		if (load->parts[i].start < end && at < load->parts[i].end)
			return false;
	return true;
}

/* A block that is free in the state as well. The kernel maps from above; most of the space below is free. */
static struct block *find_block(const struct load *load)
{
	for (uint64_t at = 1UL << 32; at < TOP - load->size; at += 1UL << 36) {
		if (!is_free(load, at, at + load->size))
			continue;
		void *const got = mmap((void *)at, load->size, PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if ((uint64_t)got == at)
			return got;
		if (got != MAP_FAILED)
			munmap(got, load->size);
	}
	return NULL;
}

static bool of_kernel(const struct mapping *found)
{
	return found->length > 2 && found->name[0] == '[' && found->name[1] == 'v';
}

/* Whether *found*, of this process, is *part* as well: of the same file, and such that no page differs. This process has run
 * no job: what was changed in it of a file before that could only be read, as by a linker, was changed in the state as well,
 * which then has these pages. */
static bool is_part(const struct load *load, const struct mapping *found, const struct part *part)
{
	if (part->start != found->start || part->end != found->end || part->offset != found->offset ||
	    part->protection != found->protection || found->protection & PROT_WRITE || found->shared || part->flags ||
	    part->count || part->touched)
		return false;
	if (part->kind == OF_MEMORY)
		return found->inode && found->inode == load->memory_inode && found->length > 7 &&
		       !memcmp(found->name, "/memfd:", 7);
	const struct file *const file = &load->files[part->file];
	return part->kind == OF_FILE && found->inode == file->inode && found->length == file->length &&
	       !memcmp(found->name, load->names + file->name, file->length);
}

/* Find the parts that stay. */
static void find_kept(struct load *load)
{
	const char *const last = load->text + load->length;
	struct mapping found;
	uint32_t i = 0;

	for (const char *text = load->text; (text = next_mapping(text, last, &found));) {
		while (i < load->head->part_count && load->parts[i].start < found.start)
			i++;
		if (i < load->head->part_count)
			load->kept[i] = is_part(load, &found, &load->parts[i]);
	}
}

/* Whether this mapping stays. Mappings are asked about in their order; *next* is the part to begin with. */
static bool is_kept(const struct load *load, const struct mapping *found, uint32_t *next)
{
	while (*next < load->head->part_count && load->parts[*next].start < found->start)
		(*next)++;
	return *next < load->head->part_count && load->parts[*next].start == found->start && load->kept[*next];
}

/* Rows that unmap everything but the block, what stays, and what the kernel has mapped, and move that to where the state had
 * it. */
static int clear(struct load *load)
{
	const char *const last = load->text + load->length;
	const uint64_t block = (uint64_t)load->block, block_end = block + load->size;
	uint64_t at = PAGE * 16, aside = block_end - PAGE * 64;
	struct mapping found, kept[8];
	uint32_t count = 0, next = 0, part = 0;
	bool done = false;

	for (const char *text = load->text; (text = next_mapping(text, last, &found)) && found.start < TOP;) {
		if (!of_kernel(&found) && !is_kept(load, &found, &part))
			continue;
		if (!done && block < found.start) {
			row(load, 0, SYS_munmap, (long)at, (long)(block - at), 0, 0, 0, 0);
			at = block_end;
			done = true;
		}
		if (at < found.start)
			row(load, 0, SYS_munmap, (long)at, (long)(found.start - at), 0, 0, 0, 0);
		at = found.end;
		if (!of_kernel(&found))
			continue;
		if (count == 8)
			return -ENOTSUP;
		kept[count++] = found;
	}
	if (!done) {
		row(load, 0, SYS_munmap, (long)at, (long)(block - at), 0, 0, 0, 0);
		at = block_end;
	}
	row(load, 0, SYS_munmap, (long)at, (long)(TOP - at), 0, 0, 0, 0);

	/* Aside first, because the two places may overlap. */
	for (uint32_t pass = 0; pass < 2; pass++) {
		uint64_t place = aside;
		next = 0;
		for (uint32_t i = 0; i < load->head->part_count; i++) {
			const struct part *const part = &load->parts[i];
			const uint64_t size = part->end - part->start;
			if (part->kind != OF_KERNEL)
				continue;
			if (next == count || kept[next].end - kept[next].start != size || size > PAGE * 32)
				return -EXDEV; /* another kernel's */
			if (kept[next].start != part->start) {
				const uint64_t from = pass ? place : kept[next].start, to = pass ? part->start : place;
				row(load, (long)to, SYS_mremap, (long)from, (long)size, (long)size,
				    MREMAP_MAYMOVE | MREMAP_FIXED, (long)to, 0);
			}
			place += size;
			next++;
		}
	}
	return next == count ? 0 : -EXDEV;
}

static void map_part(struct load *load, const struct part *part)
{
	const uint64_t size = part->end - part->start;
	const bool grows = part->flags & GROWS_DOWN, of_file = part->kind != ANONYMOUS;
	const int file = part->kind == OF_MEMORY ? load->memory : of_file ? load->opened[part->file] : -1;
	bool copied = false;

	for (uint32_t i = 0; i < part->count; i++)
		if (grows || load->runs[part->first + i].size < MAPPED * PAGE)
			copied = true;
	const int final = (int)part->protection, first = copied ? PROT_READ | PROT_WRITE : final;
	row(load, (long)part->start, SYS_mmap, (long)part->start, (long)size, first,
	    MAP_PRIVATE | MAP_FIXED | (of_file ? 0 : MAP_ANONYMOUS | MAP_NORESERVE) | (grows ? MAP_GROWSDOWN : 0),
	    file, of_file ? (long)part->offset : 0);
	for (uint32_t i = 0; i < part->count; i++) {
		const struct run *const run = &load->runs[part->first + i];
		if (grows || run->size < MAPPED * PAGE)
			row(load, (long)run->size, SYS_pread64, load->file, (long)run->start, (long)run->size, (long)run->at, 0, 0);
		else
			row(load, (long)run->start, SYS_mmap, (long)run->start, (long)run->size, first, MAP_PRIVATE | MAP_FIXED,
			    load->file, (long)run->at);
	}
	if (part->flags & WIPED)
		row(load, 0, SYS_madvise, (long)part->start, (long)size, MADV_WIPEONFORK, 0, 0, 0);
	if (first != final)
		row(load, 0, SYS_mprotect, (long)part->start, (long)size, final, 0, 0, 0);
}

static int lay_rows(struct load *load, const struct head *head)
{
	struct lw_state *const state = (struct lw_state *)head->state;
	const uint64_t ours = first_brk();
	char *const area = &__rseq_size && __rseq_size ? (char *)__builtin_thread_pointer() + __rseq_offset : NULL;

	load->count = 0;
	/* The kernel writes into this area whenever the thread is moved. */
	for (uint64_t size = 32; area && size <= 64; size += 32) /* as long as it was registered with: one of the two */
		row(load, ANY, SYS_rseq, (long)area, (long)size, 1 /* RSEQ_FLAG_UNREGISTER */, RSEQ_SIGNATURE, 0, 0);
	row(load, 0, SYS_set_robust_list, 0, sizeof(struct { void *a; long b; void *c; }), 0, 0, 0, 0);
	const uint64_t grown = load->count;
	row(load, ANY, SYS_brk, ours == head->first_brk ? (long)head->brk : 0, 0, 0, 0, 0, 0);
	const int err = clear(load);
	if (err < 0)
		return err;
	for (uint32_t i = 0; i < head->part_count; i++)
		if (load->parts[i].kind != OF_KERNEL && !load->kept[i])
			map_part(load, &load->parts[i]);
	/* Descriptors of ours: 0 to 5 are those of every kernel. */
	for (uint32_t i = 0; i < head->file_count; i++)
		row(load, 0, SYS_close, load->opened[i], 0, 0, 0, 0, 0);
	row(load, 0, SYS_close, load->file, 0, 0, 0, 0, 0);
	if (load->memory >= 0)
		row(load, 0, SYS_close, load->memory, 0, 0, 0, 0, 0);
	for (int i = 1; i <= SIGNALS; i++)
		if (i != 9 && i != 19) { /* SIGKILL, SIGSTOP */
			struct action *const actions = (struct action *)(load->block + 1);
			row(load, ANY, SYS_rt_sigaction, i, (long)&actions[i - 1], 0, 8, 0, 0);
		}
	row(load, ANY, SYS_sigaltstack, (long)((struct action *)(load->block + 1) + SIGNALS), 0, 0, 0, 0, 0);
	row(load, 0, SYS_arch_prctl, ARCH_SET_FS, (long)head->thread_pointer, 0, 0, 0, 0);
	row(load, ANY, STORE, (long)&state->block, 0, (long)load->block, 0, 0, 0);
	row(load, ANY, STORE, (long)&state->block_size, 0, (long)load->size, 0, 0, 0);
	row(load, ANY, STORE, (long)&state->word, 0, load->word, 0, 0, 0);
	row(load, ANY, STORE, (long)&state->brk, (long)&load->rows[grown].got, 0, 0, 0, 0);
	return 0;
}

static void fill_block(struct load *load, const struct head *head)
{
	struct action *const actions = (struct action *)(load->block + 1);
	struct { uint64_t at; uint32_t flags; uint64_t size; } stack = { head->stack_at, head->stack_flags, head->stack_size };

	memcpy(load->block->registers, head->registers, sizeof(head->registers));
	memcpy(actions, head->actions, sizeof(head->actions));
	memcpy(actions + SIGNALS, &stack, sizeof(stack));
	load->block->rows = (uint64_t)load->rows;
	load->block->count = load->count;
}

/* Map what the state's file says, check that, and open the files that it had mapped. 0, or -errno as lw_state_load. */
static int read_state(struct load *load, char *ret_name)
{
	struct stat now;
	const struct head *const first = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, load->file, 0);

	if (first == MAP_FAILED || fstat(load->file, &now) < 0)
		return -errno;
	const uint64_t size = first->magic == LW_STATE_MAGIC && first->size <= (uint64_t)now.st_size ? first->size : 0;
	const struct head *const head = size ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, load->file, 0) : MAP_FAILED;
	if (head == MAP_FAILED || size < PAGE || !is_whole(head, size))
		return -EBADMSG;
	if (head->memory && (load->memory < 0 || fstat(load->memory, &now) < 0))
		return -ESTALE;
	load->memory_inode = head->memory ? now.st_ino : 0;
	load->head = head;
	load->parts = (const struct part *)((const char *)head + head->parts);
	load->files = (const struct file *)((const char *)head + head->files);
	load->runs = (const struct run *)((const char *)head + head->runs);
	load->names = (const char *)head + head->names;
	load->opened = calloc(head->file_count + 1UL, sizeof(int));
	load->kept = calloc(head->part_count + 1UL, sizeof(bool));
	return load->opened && load->kept ? open_files(load, ret_name) : -ENOMEM;
}

/* Make the block: registers, signals' actions, rows, the code that makes them, its stack. 0, or -errno. */
static int lay_block(struct load *load, char **ret_code, char **ret_stack)
{
	const struct head *const head = load->head;
	const uint64_t code_size = (uint64_t)(end - begin);

	load->most = 128 + 2UL * SIGNALS + 4UL * head->part_count + head->run_count + head->file_count;
	const uint64_t rows = pages(sizeof(struct block) + (SIGNALS + 1) * sizeof(struct action));
	const uint64_t code = rows + pages(load->most * sizeof(struct row)), stack = code + pages(code_size) + STACK_SIZE;
	load->size = stack + PAGE * 64; /* behind the stack is where [vdso] may lie for a moment */
	load->text = malloc(TEXT);
	load->block = load->text ? find_block(load) : NULL;
	if (!load->block)
		return -ENOMEM;
	char *const base = (char *)load->block;
	load->rows = (struct row *)(base + rows);
	load->length = read_all("/proc/self/maps", load->text, TEXT - 1);
	if (load->length > 0)
		find_kept(load);
	const int err = load->length < 0 ? (int)load->length : lay_rows(load, head);
	if (err < 0 || load->count > load->most) {
		munmap(load->block, load->size);
		return err < 0 ? err : -E2BIG;
	}
	fill_block(load, head);
	memcpy(base + code, begin, code_size);
	*ret_code = base + code;
	*ret_stack = base + stack;
	return mprotect(base + code, pages(code_size), PROT_READ | PROT_EXEC) < 0 ? -errno : 0;
}

/* Load the state in *file*, which may be sealed, with the zygote's memory file *memory*, or -1. The copy finds *word*
 * in its struct lw_state. Returns only if it can't be: -errno, and *ret_name, of LW_STATE_NAME, is the name of the file that
 * is missing (-ENOENT and others) or is another one (-ESTALE); -EBADMSG if the file is no state, -EXDEV if it is of another
 * kernel. */
int64_t lw_state_load(int file, int memory, int64_t word, char *ret_name)
{
	struct load load = { .file = file, .memory = memory, .word = word };
	char *code = NULL, *stack = NULL;
	uint64_t all = ~0UL;

	ret_name[0] = 0;
	int err = read_state(&load, ret_name);
	if (!err)
		err = lay_block(&load, &code, &stack);
	if (err < 0)
		return err;
	raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, sizeof(all), 0);
	__asm__ volatile("mov %0, %%rsp\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "call *%1\n\t"
			 "ud2"
			 : : "r"(stack), "r"(code + ((const char *)make - begin)), "D"(load.block)
			 : "memory");
	__builtin_unreachable();
}

#else

int64_t lw_state_load(int file, int memory, int64_t word, char *ret_name)
{
	(void)file, (void)memory, (void)word;
	ret_name[0] = 0;
	return -ENOSYS;
}

#endif
