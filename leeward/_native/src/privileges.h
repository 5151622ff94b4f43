/* Capabilities and prctl options. */
#pragma once

#include <sys/prctl.h>

int lw_prctl(int option, unsigned long a, unsigned long b);
int lw_capabilities_left(void);
