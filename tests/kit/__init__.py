"""
The modules that tests share; no test is in here.

    policies      skip_policy, lock_policy: plugins that judge skips, and escape tests by what they ran
                  features, locks, promises: what they and the tests are compared with
    sandboxes     box: an engine in the test's own process; points, halfway, loosened, drivers: the same without some
                  locks
                  attack, confined, landlocked, inits, running: what goes into one, and parts of one alone
    daemons       live_daemon, fake_daemon, sessions, reactors, exposition
                  daemon_build: one whose points are filled, by stalling, resolving, no_netlink
    other users   ordinary_user, beside, container: users, and containers with the suite in them
    C             c_client
    shared        fixtures: those that several files have
    waiting       waiting: for events that no descriptor reports
"""
