"""
E2B's interface: sandboxes, their files and processes, and code whose variables stay.

Runs in:   `leeward serve`, as the package around it.
Source:    the clients e2b 2.63, e2b-code-interpreter 2.11 (Python), e2b 2.51, @e2b/code-interpreter 2.8 (Node), which work
           as they are; github.com/e2b-dev/infra, spec/ and packages/envd/spec/
"""
