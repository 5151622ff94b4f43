"""
Domains below which anybody can register a name: the public suffixes, and more below which no entry may allow all names.

Source:    publicsuffix.org; the list comes with the package publicsuffixlist, with its date and its licence (MPL 2.0).
           SHARED_DOMAINS are domains that it lacks, domains whose owner serves other people's content under
           sub-domains, and those that agents' settings are most likely to name.
Used by:   the network entries of agents' settings, and the rules that "always allow" stores for approvals.
Leaves:    single hosts that serve other people's content (a paste, an issue, a bucket by its path). The person decides
           about an entry of a single host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from leeward.errors import Unsupported
from leeward.spec.hosts import is_below


def registrable(name: str) -> str | None:
    """The shortest domain at or above *name* that can be registered, as example.co.uk; None for a public suffix."""
    found = _suffixes()(name)
    return None if found is None else str(found)


@functools.cache
def _suffixes() -> Callable[[str], Any]:
    try:
        from publicsuffixlist import PublicSuffixList  # of the extra `approvals`
    except ImportError:
        raise Unsupported("the list of public suffixes", have="none", need="the package publicsuffixlist",
                          cure="pip install 'leeward[approvals]'") from None
    return PublicSuffixList().privatesuffix


#: The domains, each with the reason for the error's message.
_BY_REASON = {
    "storage.googleapis.com has anybody's buckets, and other names below take anybody's data": "googleapis.com",
    "each bucket of anybody's is a name below it": "storage.googleapis.com",
    "what anybody uploaded to Google is served below it": "googleusercontent.com",
    "anybody's applications have names below it": "appspot.com herokuapp.com fly.dev",
    "anybody's services on Cloud Run have names below it": "run.app",
    "anybody's functions have names below it": "cloudfunctions.net",
    "anybody's sites on Firebase have names below it": "web.app firebaseapp.com",
    "anybody's databases have names below it": "firebaseio.com supabase.co",
    "anybody's buckets, functions and machines on AWS have names below it": "amazonaws.com",
    "anybody's distributions on AWS have names below it": "cloudfront.net",
    "anybody's services on AWS have names below it": "awsapprunner.com",
    "anybody's functions on AWS have names below it": "on.aws",
    "anybody's resources on AWS have names below it": "api.aws",
    "anybody's storage accounts on Azure have names below it": "windows.net core.windows.net",
    "anybody's machines on Azure have names below cloudapp.azure.com": "azure.com",
    "anybody's gateways on Azure have names below it": "azure-api.net",
    "anybody's content on Azure has names below it": "azureedge.net azurefd.net",
    "anybody's applications on Azure have names below it": "azurewebsites.net",
    "anybody's machines on Azure have names below it": "cloudapp.net",
    "anybody's buckets on Cloudflare have names below it": "cloudflarestorage.com r2.dev",
    "anybody's programs on Cloudflare have names below it": "workers.dev",
    "anybody's sites on Cloudflare have names below it": "pages.dev",
    "anybody opens a tunnel below it, without an account": "trycloudflare.com",
    "anybody's content on Fastly has names below it": "fastly.net",
    "the content of all of Akamai's customers has names below it": "akamaized.net",
    "anybody's pages have names below it": "github.io gitlab.io",
    "anybody's files and gists are served below it": "githubusercontent.com",
    "anybody's sites have names below it": ("vercel.app netlify.app wordpress.com tumblr.com substack.com ghost.io"
                                            " neocities.org 000webhostapp.com infinityfreeapp.com hs-sites.com"),
    "anybody gets a name of their own machine's below it": "afraid.org mooo.com",
    "anybody's content has names below it": "b-cdn.net kxcdn.com imgix.net",
    "anybody's services have names below it": "onrender.com railway.app koyeb.app azurecontainerapps.io",
    "anybody's programs have names below it": "deno.dev hf.space modal.run deta.app begin.app glitch.me stackblitz.io",
    "anybody's machines for development have names below it": "visualstudio.com github.dev gitpod.io codesandbox.io",
    "anybody opens a tunnel below it": ("ngrok.io ngrok.app ngrok-free.app ngrok-free.dev loca.lt localtunnel.me serveo.net"
                                        " pinggy.link pinggy.io lhr.life localhost.run bore.pub devtunnels.ms"),
    "anybody's buckets have names below it": "digitaloceanspaces.com backblazeb2.com wasabisys.com",
    "its names lead to whatever address they spell": "nip.io sslip.io",
    "it shows anybody the requests that were sent there": ("requestbin.net pipedream.net requestcatcher.com beeceptor.com"
                                                           " webhook.site"),
    "it shows anybody who has got a name there the requests that were sent to it":
        ("oast.fun oast.pro oast.live oast.site oast.online oast.me oastify.com burpcollaborator.net interact.sh dnslog.cn"
         " ceye.io"),
    "anybody's workspace has a name below it": "slack.com",
    "anybody's organisation has a name below it": ("sharepoint.com zendesk.com atlassian.net salesforce.com force.com"
                                                   " service-now.com okta.com auth0.com onmicrosoft.com"),
    "what anybody uploaded to Discord is served below it": "discordapp.com",
}
SHARED_DOMAINS = {domain: reason for reason, domains in _BY_REASON.items() for domain in domains.split()}


def shared_below(name: str) -> str:
    """Why a rule must not allow all names below the domain *name*; "" if it may."""
    return next((reason for domain, reason in SHARED_DOMAINS.items() if name == domain or is_below(domain, name)), "")
