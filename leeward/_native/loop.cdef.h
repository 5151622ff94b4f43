#define LW_LOOP_EVENTS ...
#define LW_IO_EPOLL ...
#define LW_IO_URING ...
#define LW_EVENT_READY ...
#define LW_EVENT_ACCEPTED ...
#define LW_EVENT_DATA ...
#define LW_EVENT_ROOM ...
#define LW_EVENT_SENT ...
#define LW_EVENT_STARTED ...
#define LW_EVENT_DONE ...
#define LW_EVENT_HANDED ...
#define LW_EVENT_REFUSED ...
#define LW_EVENT_TRANSPORT ...

struct lw_event {
	uint32_t kind;
	int32_t fd;
	int64_t value;
	uint64_t number;
	uint64_t id;
	uint64_t session;
	const uint8_t *data;
	uint32_t size;
	double at;
	double cpu;
	uint64_t peak;
};

struct lw_piece {
	const uint8_t *data;
	uint32_t size;
};


struct lw_templates {
	struct lw_piece request_id, request_code;
	struct lw_piece job_code;
	struct lw_piece turn_id, turn_session, turn_code;
	struct lw_piece job_turn, job_shown;
	struct lw_piece reply;
	struct lw_piece answer_id, answer_duration, answer_cpu, answer_peak, answer_out, answer_err;
};


struct lw_gauge {
	int fd;
	char key[16];
};

struct lw_offer {
	uint64_t number;
	int job, reply, out, err;
	struct lw_gauge time, peak, oom, forks;
	double time_unit, time_before;
	uint64_t oom_before, forks_before;
	struct lw_supervisor *supervisor;
	uint32_t denials;
	uint64_t denials_before;
	uint64_t session;
	int stream;
	bool shows;
};

struct lw_loop;

int lw_loop_open(uint32_t io, struct lw_loop **ret_loop);
void lw_loop_close(struct lw_loop *loop);
int lw_loop_watch(struct lw_loop *loop, int fd, uint32_t events);
int lw_loop_change(struct lw_loop *loop, int fd, uint32_t events);
int lw_loop_forget(struct lw_loop *loop, int fd);
int lw_loop_accept(struct lw_loop *loop, int fd);
int lw_loop_stream(struct lw_loop *loop, int fd, uint64_t number, bool guarded, bool reading);
int lw_stream_read(struct lw_loop *loop, int fd, bool on);
int lw_stream_fast_path(struct lw_loop *loop, int fd, bool on);
int64_t lw_stream_send(struct lw_loop *loop, int fd, const uint8_t *data, uint64_t size, const int *fds,
		       uint32_t fd_count);
int64_t lw_stream_backlog(struct lw_loop *loop, int fd);
void lw_loop_pulse(struct lw_loop *loop, uint64_t *ret_turns, int64_t *ret_waits_until);
int lw_loop_turn(struct lw_loop *loop, int64_t patience_ns, struct lw_event *ret_events);

int lw_fast_path_set_templates(struct lw_loop *loop, const struct lw_templates *templates);
void lw_fast_path_linger(struct lw_loop *loop, int64_t after_start_ns, int64_t after_answer_ns);
int lw_fast_path_offer(struct lw_loop *loop, const struct lw_offer *offer);
int lw_fast_path_adopt(struct lw_loop *loop, const struct lw_offer *offer, int fd, uint64_t id, double started);
int lw_fast_path_withdraw(struct lw_loop *loop, uint64_t number);
int lw_fast_path_refusal(struct lw_loop *loop, const uint8_t *before, uint32_t before_size, const uint8_t *behind,
			 uint32_t behind_size);
int lw_stream_shed(struct lw_loop *loop, int fd, bool on);
