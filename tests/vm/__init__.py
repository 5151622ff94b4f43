"""
Real kernels for the tests: boots one in QEMU, with this checkout in it, and runs pytest there.

Runs in:   `./dev vm`, and pytest (test_rows.py). What runs in the guest is in guest/.

    kernels      which kernels there are, and how Debian's packages of them become something to boot
    archive      cpio archives, which the kernel unpacks into its first root
    share        the guest's root: this machine's, read-only, by virtiofs
    machine      one boot, from the first instruction to the files that the guest leaves
    rows         kernel and way of running, and which tests are worth their time there
    report       what one run found, and where it is kept
    table        docs/kernel.md's table, from those reports

All in software: a nested KVM isn't to be had everywhere, and half a minute a boot it isn't.
"""
