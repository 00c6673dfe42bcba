"""Never ends on the host.

row: 60
ends: timeout
where: slow
deadline: 4
"""


def run(x):
    while True:
        pass
