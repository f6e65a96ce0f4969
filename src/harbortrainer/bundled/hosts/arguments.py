"""Arguments of the command `doctor hosts`."""

import chz

from harbortrainer.setting import field


@chz.chz
class HostsArgs:
    skyrl_tx_url: str | None = field(
        None, "URL of the self-hosted server that every host must reach; None = do not look for one"
    )
