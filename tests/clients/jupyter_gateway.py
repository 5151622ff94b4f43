"""A notebook by nbclient, whose kernel is a gateway's by jupyter-server's own client."""

import contextlib

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

KIND = "jupyter_server.gateway.managers.GatewayKernelManager"


def notebook(*cells):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


whole = notebook("import sys; kept = 6; print('out'); print('err', file=sys.stderr)",
                 "from IPython.display import HTML, display; display(HTML('<b>x</b>'))", "kept * 7")
NotebookClient(whole, kernel_manager_class=KIND, timeout=60).execute()
first, second, third = (cell.outputs for cell in whole.cells)
assert {("stdout", "out\n"), ("stderr", "err\n")} == {(each.name, each.text) for each in first}, first
assert "<b>x</b>" == second[0].data["text/html"], second
assert ("execute_result", "42") == (third[0].output_type, third[0].data["text/plain"]), third
assert [1, 2, 3] == [cell.execution_count for cell in whole.cells]

failing = notebook("1/0", "2")
with contextlib.suppress(CellExecutionError):
    NotebookClient(failing, kernel_manager_class=KIND, timeout=60).execute()
assert ["ZeroDivisionError"] == [each.ename for each in failing.cells[0].outputs], failing
assert [] == failing.cells[1].outputs
