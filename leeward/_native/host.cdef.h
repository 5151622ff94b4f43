int lw_io_uring_setup_refusal(void);
